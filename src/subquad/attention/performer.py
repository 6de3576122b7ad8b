"""Performer (Choromanski et al. 2020, https://arxiv.org/abs/2009.14794, Eq. 5 and Lemma 1)."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.attention.base import Projections, Refreshable, StatelessAttention
from subquad.errors import UserError
from subquad.ops.features import orthogonal_directions
from subquad.specs import Masks, Pattern, Site

FeatureMap = Literal["softmax", "relu"]


class Performer(StatelessAttention, Refreshable):
    """y_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / (φ(q_i)ᵀ Σ_j φ(k_j)) in each head, with random features φ of directions w_1..w_M.

    feature_map: "softmax" φ(x)_r = exp(w_rᵀx - ‖x‖²/2) / √M of x / d_h^{1/4}, whose inner products average to
        exp(qᵀk / √d_h) (FAVOR+); "relu" φ(x)_r = ReLU(w_rᵀx) + eps, the generalised kernel.
    features: M; null is d_h ln d_h.
    redraw: optimiser steps between new directions, 0 for never.

    The directions are rows of random rotations with the norms of Gaussian vectors, the same for all heads. Padded keys
    get φ(k) = 0. There are no weights to drop: `site.dropout` is unused.

    A factor of φ(q_i), and one common to the φ(k_j) of a row and head, cancel in y_i. So the features of a query are
    divided by their largest, those of the keys by the largest of all; neither overflows, and 1/√M and the norm of a
    query are left out. Columns of 1 beside the values make the normaliser part of the same products. Features are
    float32 in low precision.

    Released code: adds 1e-4 (lucidrains) or 1e-6 (Google) to the softmax features; padding stays in the normaliser.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n d (d + M)), memory O(n (d + h M))"
    approximates_softmax = True

    directions: Tensor

    def __init__(
        self,
        site: Site,
        features: int | None = None,
        feature_map: FeatureMap = "softmax",
        redraw: int = 1000,
        eps: float = 1e-3,
    ) -> None:
        super().__init__(site)
        width = site.dim // site.heads
        self.features = max(1, int(width * math.log(width))) if features is None else features
        if self.features < 1 or redraw < 0:
            raise UserError(
                f"Performer got {self.features} features, redrawn every {redraw} steps; "
                "give at least 1 feature and 0 (never) or more steps."
            )
        if feature_map not in ("softmax", "relu"):
            raise UserError(f"Performer has no feature map {feature_map}; choose softmax or relu.")
        if feature_map == "relu" and eps <= 0:
            raise UserError(f"Performer with ReLU features may divide by 0 with eps {eps}; choose a positive one.")
        self.feature_map, self.redraw, self.eps = feature_map, redraw, eps
        self.approximates_softmax = feature_map == "softmax"
        self.projections = Projections(site.dim, site.heads)
        self.register_buffer("directions", orthogonal_directions(self.features, width))

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p = self.projections
        q, k, v = p.qkv(x, context)
        with torch.autocast(x.device.type, enabled=False):
            q, k, v = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (q, k, v))
            width, directions = v.shape[-1], self._filled(q.dtype)
            # One column of ones is read; the others keep the products aligned.
            values = F.pad(v, (0, 1 + -(width + 1) % 8), value=1)
            state = self._keys(k, directions, values, masks.context)
            real = torch.arange(len(directions), device=x.device) < self.features
            read = self._queries(q, directions, state * real[:, None])
            weight = read[..., width : width + 1]
            # Sums that underflow divide by the bound: the slope of 1 / w of a subnormal w is infinite.
            y = (read[..., :width] / weight.clamp(min=1e-24)).to(x.dtype)
        return p.merge(y)

    def _queries(
        self, q: Float[Tensor, "b h n e"], directions: Float[Tensor, "f e"], state: Float[Tensor, "b h f v"]
    ) -> Float[Tensor, "b h n v"]:
        """φ(q_i)ᵀ state, each up to a factor."""
        projected = q @ directions.mT
        if self.feature_map == "relu":
            return (F.relu(projected) + self.eps) @ state
        return _exp_times(projected, -projected.detach().amax(-1, keepdim=True), state, transposed=False)

    def _keys(
        self,
        k: Float[Tensor, "b h m e"],
        directions: Float[Tensor, "f e"],
        values: Float[Tensor, "b h m v"],
        mask: Bool[Tensor, "b m"] | None,
    ) -> Float[Tensor, "b h f v"]:
        """Σ_j φ(k_j) v_jᵀ, up to a factor of each row and head; φ(k) is 0 at padding."""
        padding = None if mask is None else ~mask[:, None, :, None]
        projected = k @ directions.mT
        if self.feature_map == "relu":
            features = F.relu(projected) + self.eps
            return (features if padding is None else features.masked_fill(padding, 0)).mT @ values
        half_norm = k.square().sum(-1, keepdim=True) / (2 * math.sqrt(k.shape[-1]))
        top = projected.detach().amax(-1, keepdim=True) - half_norm.detach()
        if padding is None:
            return _exp_times(projected, -half_norm - top.amax(2, keepdim=True), values, transposed=True)
        largest = top.masked_fill(padding, torch.finfo(top.dtype).min).amax(2, keepdim=True)
        # exp(-∞) = 0 where a key is padding, and only real keys choose the largest feature.
        shift = (-half_norm - largest).masked_fill(padding, -math.inf)
        return _exp_times(projected, shift, values, transposed=True)

    def _filled(self, dtype: torch.dtype) -> Float[Tensor, "f e"]:
        """w / d_h^{1/4}, repeated up to a multiple of 16; repetitions get no state.

        Products of 266 columns take twice the time of 272 on a CPU.
        """
        rows = torch.arange(-(-self.features // 16) * 16, device=self.directions.device) % self.features
        return self.directions.to(dtype)[rows] * self.directions.shape[1] ** -0.25

    def due(self, epoch: int, batch: int, step: int) -> bool:
        return self.redraw > 0 and step > 0 and step % self.redraw == 0

    def refresh(self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks) -> None:
        self.directions.copy_(orthogonal_directions(*self.directions.shape))


def _exp_times(
    projected: Float[Tensor, "b h n f"],
    shift: Float[Tensor, "b h n 1"],
    x: Float[Tensor, "b h k v"],
    *,
    transposed: bool,
) -> Float[Tensor, "b h l v"]:
    """φ x, or φᵀ x where `transposed`, with φ = exp(projected + shift), which takes the memory of `projected`."""
    with torch.no_grad():
        projected.add_(shift).exp_()
    y: Tensor = _ExpTimes.apply(projected, shift, x, transposed)
    return y


class _ExpTimes(torch.autograd.Function):
    """The product with φ, given the values of φ in the place of its logarithm, whose gradient is φ times that of φ.

    These are the largest tensors here; nobody else reads the gradient of φ, so it is scaled in place.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, shift: Tensor, x: Tensor, transposed: bool) -> Tensor:
        ctx.save_for_backward(features, x)
        ctx.transposed = transposed
        return (features.mT if transposed else features) @ x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor, None]:
        features, x = ctx.saved_tensors
        of_x = (features if ctx.transposed else features.mT) @ gradient
        of_logarithm = (x @ gradient.mT if ctx.transposed else gradient @ x.mT).mul_(features)
        of_shift = of_logarithm.sum(-1, keepdim=True) if ctx.needs_input_grad[1] else None
        return of_logarithm, of_shift, of_x, None
