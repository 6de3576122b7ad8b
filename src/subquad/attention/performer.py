"""Performer (Choromanski et al. 2020, https://arxiv.org/abs/2009.14794, Eq. 5 and Lemma 1)."""

import math
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.attention.base import Projections, Redrawn, StatelessAttention, copy_drawn
from subquad.ops.linear_attention_on_gpu import use_gpu_path, weights_of
from subquad.ops.mixed_precision import without_autocast
from subquad.ops.performer_on_gpu import performer
from subquad.ops.random_features import orthogonal_directions
from subquad.specs import Context, ContextMask, Masks, Pattern, Site, Tokens
from subquad.utils.derivatives import by_torch, first_order
from subquad.utils.errors import UserError
from subquad.utils.fixed_weights import once
from subquad.utils.setting_types import Count, Natural, NonNegative

FeatureMap = Literal["softmax", "relu"]


def naive_performer(
    q: Float[Tensor, "n e"], k: Float[Tensor, "m e"], v: Float[Tensor, "m e"], directions: Float[Tensor, "f e"],
    feature_map: FeatureMap = "softmax", eps: float = 1e-3,
) -> Float[Tensor, "n e"]:  # fmt: skip
    """One head as in the paper, for one sequence without padding; `directions` are the rows w_1 to w_M."""
    features = naive_softmax_features if feature_map == "softmax" else partial(naive_relu_features, eps=eps)
    similarity = features(q, directions) @ features(k, directions).T
    return similarity / similarity.sum(1, keepdim=True) @ v  # Section 2.2: D⁻¹ Q' K'ᵀ V


def naive_softmax_features(x: Float[Tensor, "n e"], directions: Float[Tensor, "f e"]) -> Float[Tensor, "n f"]:
    """Positive features: E[φ(q)ᵀφ(k)] = exp(qᵀk / √d_h)."""
    x = x / x.shape[1] ** 0.25  # so that inner products are those of the softmax kernel, qᵀk / √d_h
    h = (-x.square().sum(1, keepdim=True) / 2).exp()
    return h / math.sqrt(len(directions)) * (x @ directions.T).exp()  # Eq. 5 with f = exp and h of Lemma 1


def naive_relu_features(x: Float[Tensor, "n e"], directions: Float[Tensor, "f e"], eps: float) -> Float[Tensor, "n f"]:
    """Features of the generalised kernel with f = ReLU, as in the released code."""
    return (x / x.shape[1] ** 0.25 @ directions.T).relu() + eps  # Eq. 5 with f = ReLU; a factor 1 / √M cancels


class Performer(StatelessAttention, Redrawn):
    """y_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / (φ(q_i)ᵀ Σ_j φ(k_j)) in each head, with random features φ of directions w_1..w_M.

    The directions are rows of random rotations with the norms of Gaussian vectors, the same for all heads. Padded keys
    get φ(k) = 0. `site.dropout` is unused, because no attention weights exist.

    Args:
        features: number M of features; null is d_h ln d_h.
        feature_map: "softmax" is φ(x)_r = exp(w_rᵀx - ‖x‖²/2) / √M of x / d_h^{1/4}, whose inner products average to
            exp(qᵀk / √d_h) (FAVOR+); "relu" is φ(x)_r = ReLU(w_rᵀx) + eps, the generalised kernel.
        redraw: optimiser steps after which new directions are drawn; 0 never draws new ones.
        eps: added to the "relu" features.

    Why the fast path is equal: the sums over keys are taken first, so no n x m matrix is formed. A factor of φ(q_i),
    and a factor common to all φ(k_j) of a row and head, cancel in y_i. So the features of a query are divided by their
    largest and those of the keys by the largest of all, which prevents overflow; 1/√M and the norm of a query are
    omitted. A column of ones beside the values makes the normaliser part of the same product. In low precision,
    features are float32.

    Examples:
        >>> import torch
        >>> from subquad import Performer
        >>> layer = Performer(dim=64, heads=4, features=64)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: adds 1e-4 (lucidrains) or 1e-6 (Google) to the softmax features; padding stays in the normaliser.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n d (d + M)), memory O(n (d + h M))"
    approximates_softmax = True

    directions: Tensor

    def __init__(
        self, site: Site, features: Count | None = None, feature_map: FeatureMap = "softmax", redraw: Natural = 1000,
        eps: NonNegative = 1e-3,
    ) -> None:  # fmt: skip
        super().__init__(site)
        width = site.dim // site.heads
        self.features = max(1, int(width * math.log(width))) if features is None else features
        if feature_map == "relu" and eps <= 0:
            raise UserError(f"Performer with ReLU features may divide by 0 with eps {eps}; choose a positive one.")
        self.feature_map, self.interval, self.eps = feature_map, redraw, eps
        self.approximates_softmax = feature_map == "softmax"
        self.projections = Projections(site.dim, site.heads)
        self.register_buffer("directions", orthogonal_directions(self.features, width))

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        if use_gpu_path(x, context):
            weights = weights_of(p.query, p.key, p.value, p.out)
            eps = self.eps if self.feature_map == "relu" else None
            dtype = torch.promote_types(x.dtype, torch.float32)
            directions = once((self, dtype), partial(self._filled, dtype), self.directions)
            return performer(x, masks.context, weights, directions, self.features, p.heads, eps)
        q, k, v = p.qkv(x, context)
        with without_autocast(x):
            q, k, v = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (q, k, v))
            width, directions = v.shape[-1], self._filled(q.dtype) * v.shape[-1] ** -0.25
            # The first added column of ones gives the normaliser; the others pad the width to a multiple of 8.
            values = F.pad(v, (0, 1 + -(width + 1) % 8), value=1)
            sums = self._keys(k, directions, values, masks.context)
            real = torch.arange(len(directions), device=x.device) < self.features
            products = self._queries(q, directions, sums * real[:, None])
            weight = products[..., width : width + 1]
            # The bound keeps the gradient of 1 / w finite where w underflows to a subnormal number.
            y = (products[..., :width] / weight.clamp(min=1e-24)).to(x.dtype)
        return p.merge(y)

    def _queries(
        self, q: Float[Tensor, "b h n e"], directions: Float[Tensor, "f e"], sums: Float[Tensor, "b h f v"]
    ) -> Float[Tensor, "b h n v"]:
        """φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ, each up to a factor."""
        projected = q @ directions.mT
        if self.feature_map == "relu":
            return (F.relu(projected) + self.eps) @ sums
        return _exp_times(projected, -projected.detach().amax(-1, keepdim=True), sums, transposed=False)

    def _keys(
        self, k: Float[Tensor, "b h m e"], directions: Float[Tensor, "f e"], values: Float[Tensor, "b h m v"],
        mask: ContextMask,
    ) -> Float[Tensor, "b h f v"]:  # fmt: skip
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
        # exp(-∞) = 0 at padding; the largest feature is that of a real key.
        shift = (-half_norm - largest).masked_fill(padding, -math.inf)
        return _exp_times(projected, shift, values, transposed=True)

    def _filled(self, dtype: torch.dtype) -> Float[Tensor, "f e"]:
        """w, with rows repeated up to a multiple of 16; `attend` sets the sums of repeated rows to 0.

        On a CPU, products with 266 columns take twice the time of those with 272.
        """
        rows = -(-self.features // 16) * 16
        return self.directions.to(dtype).repeat(-(-rows // self.features), 1)[:rows]

    def due(self, epoch: int, batch: int, step: int) -> bool:
        return self.interval > 0 and step > 0 and step % self.interval == 0

    def redraw(self) -> None:
        copy_drawn(self.directions, orthogonal_directions(*self.directions.shape))


def _exp_times(
    projected: Float[Tensor, "b h n f"], shift: Float[Tensor, "b h n 1"], x: Float[Tensor, "b h k v"], *,
    transposed: bool,
) -> Float[Tensor, "b h l v"]:  # fmt: skip
    """φ x, or φᵀ x if `transposed`, with φ = exp(projected + shift), which overwrites `projected`."""
    if by_torch():
        features = (projected + shift).exp()
        return (features.mT if transposed else features) @ x
    with torch.no_grad():
        projected.add_(shift).exp_()
    y: Tensor = _ExpTimes.apply(projected, shift, x, transposed)
    return y


class _ExpTimes(torch.autograd.Function):
    """The product with φ, differentiated by the logarithm of φ: its gradient is φ times the gradient of φ.

    The input holds the values of φ in the memory of its logarithm. φ and its gradient are the largest tensors here, so
    the gradient is scaled in place.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, shift: Tensor, x: Tensor, transposed: bool) -> Tensor:
        ctx.save_for_backward(features, x)
        ctx.transposed = transposed
        return (features.mT if transposed else features) @ x

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor, None]:
        features, x = ctx.saved_tensors
        of_x = (features if ctx.transposed else features.mT) @ gradient
        of_logarithm = (x @ gradient.mT if ctx.transposed else gradient @ x.mT).mul_(features)
        of_shift = of_logarithm.sum(-1, keepdim=True) if ctx.needs_input_grad[1] else None
        return of_logarithm, of_shift, of_x, None
