"""Performer (Choromanski et al. 2020, https://arxiv.org/abs/2009.14794, Eq. 5 and Lemma 1)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.attention.base import Projections, Refreshable, StatelessAttention
from subquad.errors import UserError
from subquad.ops.masking import zero_padding
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

    A factor of φ(q_i), and one common to the φ(k_j) of a row and head, cancel in y_i. So queries take a softmax over
    the features, and keys are divided by their largest feature: neither overflows, and 1/√M is left out. A column of
    ones beside the values makes the normaliser part of the same products. Features are float32 in low precision.

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
        self.projections = Projections(site.dim, site.heads)
        self.register_buffer("directions", _orthogonal_features(self.features, width))

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        p = self.projections
        q, k, v = (f(t).unflatten(-1, (p.heads, -1)) for f, t in ((p.query, x), (p.key, context), (p.value, context)))
        with torch.autocast(x.device.type, enabled=False):
            q, k, v = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (q, k, v))
            state = self._keys(k, masks.context).permute(0, 2, 3, 1) @ F.pad(v, (0, 1), value=1).transpose(1, 2)
            read = self._queries(q).transpose(1, 2) @ state
            weight = read[..., -1:]
            y = (read[..., :-1] / weight.masked_fill(weight == 0, 1)).to(x.dtype)
        return p.merge(y)

    def _queries(self, q: Float[Tensor, "b n h e"]) -> Float[Tensor, "b n h f"]:
        """φ(q), each up to a factor."""
        if self.feature_map == "relu":
            return self._relu(q)
        return self._projected(q).softmax(-1)

    def _keys(self, k: Float[Tensor, "b m h e"], mask: Bool[Tensor, "b m"] | None) -> Float[Tensor, "b m h f"]:
        """φ(k), up to a factor of each row and head; 0 at padding."""
        if self.feature_map == "relu":
            return zero_padding(self._relu(k).flatten(-2), mask).unflatten(-1, (k.shape[2], -1))
        projected = self._projected(k)
        half_norm = k.square().sum(-1, keepdim=True) / (2 * math.sqrt(k.shape[-1]))
        top = projected.detach().amax(-1, keepdim=True) - half_norm.detach()
        if mask is None:
            return projected.sub_(half_norm + top.amax(1, keepdim=True)).exp_()
        padding = ~mask[:, :, None, None]
        largest = top.masked_fill(padding, torch.finfo(top.dtype).min).amax(1, keepdim=True)
        # exp(-∞) = 0 where a key is padding; only real keys choose the largest feature.
        return projected.sub_((half_norm + largest).masked_fill(padding, math.inf)).exp_()

    def _projected(self, x: Float[Tensor, "b n h e"]) -> Float[Tensor, "b n h f"]:
        """w_rᵀ x / d_h^{1/4}."""
        return F.linear(x, self.directions.to(x.dtype) * x.shape[-1] ** -0.25)

    def _relu(self, x: Float[Tensor, "b n h e"]) -> Float[Tensor, "b n h f"]:
        return F.relu(self._projected(x)) + self.eps

    def due(self, epoch: int, batch: int, step: int) -> bool:
        return self.redraw > 0 and step > 0 and step % self.redraw == 0

    def refresh(self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks) -> None:
        self.directions.copy_(_orthogonal_features(*self.directions.shape))


def _orthogonal_features(features: int, width: int) -> Float[Tensor, "f e"]:
    """Rows that are Gaussian each, and orthogonal within every `width` of them."""
    q, r = torch.linalg.qr(torch.randn(math.ceil(features / width), width, width))
    # Without these signs the first component of the first row would always be negative: not a uniform rotation.
    rotations = q * r.diagonal(dim1=1, dim2=2).sign()[:, None, :]
    norms = torch.randn(features, width).norm(dim=1, keepdim=True)
    return rotations.mT.flatten(0, 1)[:features] * norms
