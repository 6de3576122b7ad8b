"""EcoFormer: energy-saving attention (Liu et al. 2022, https://arxiv.org/abs/2209.09004, Eq. 9-14)."""

import logging
import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.attention.base import Affine, Discrete, Maps, Refreshable, StatelessAttention, SurrogateGradient
from subquad.errors import UserError
from subquad.ops.hash_fitting import fit_planes, kulis_grauman, labels
from subquad.ops.hashing import anchor_similarity, norms, power_bias, shared_attention, sign
from subquad.specs import Masks, Pattern, Site

log = logging.getLogger(__name__)

ReadOut = Literal["paper", "released"]
Fit = Literal["released", "strong", "klsh"]


class EcoFormer(StatelessAttention, Refreshable, Discrete, SurrogateGradient):
    """y_t = Σ_i (h_tᵀ h_i + 2^c) v_i / Σ_i (h_tᵀ h_i + 2^c) with codes h = sign(A (κ(q) - μ)) ∈ {±1}^b in each head.

    Queries and keys are one projection q, divided by its length. κ_j(q) = exp(-‖q - s_j‖² / 2σ) for the `anchors` unit
    vectors s_j; σ is the mean squared distance of a row's real tokens to them; c = ⌈log2(b + 1)⌉; b is `bits`. Codes
    pass the gradient of a hard tanh, and the task's loss trains neither A nor μ nor the anchors.

    read_out: "paper", as above; "released" with the bias b + 1, and (b + 1) v_t in place of Σ_i (b + 1) v_i above.
    fit: how A is found from the tokens of a batch. "released": the labels Y are +1 for the `neighbours` tokens most
        similar to a token (itself among them), -1 for as many least similar ones, 0 for others; bit after bit, 100
        steps of SGD lower -yᵀ (bY - Σ_t h_t h_tᵀ) y / (N b) with y = tanh(a κ / 2), and a new row of A is taken if
        it lowers that for hard codes. "strong": the same objective from a spectral start and at a higher rate
        (see fit_planes). "klsh": the random hyperplanes of kernelised LSH (Kulis and Grauman 2011), which read the
        anchors only.
    anchors_from: "first" draws the anchors from the real tokens of the first row, "all" from those of all rows.
    refit_epochs, fit_batch: the hash is fitted on batch `fit_batch` of each pass over the training rows whose number
        (from 0) `refit_epochs` divides, and of the first pass that finds it unfitted; refit_epochs=null fits once.
    fit_rows: rows of the batch that are used, null for all.

    Until it is fitted A and the anchors are random, and μ is the similarity at the mean distance.
    Where there are fewer real tokens than anchors, anchors are repeated. With N real tokens a row has
    min(`neighbours`, N - 1) labels of each sign, and where both meet, -1 stands. Padded tokens are no anchors and enter
    neither μ, σ, the labels nor a sum. There are no weights to drop: `site.dropout` is unused.

    A constant bit turns 2^c into one more feature; values are summed before they are projected (shared_attention).

    Released code: own value and bias b + 1 as in read_out=released; a zero vector gives NaN; takes or leaves a new bit
    for all heads at once (here for each head); fits once (refit_epochs=null), inside a forward pass, and keeps that it
    has in a Python attribute, which checkpoints lack; sign(0) = 0 (here and in the paper +1).
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n (d² + m d + h b d)), memory O(n (d + h m)); fitting O(n² d) time, O(n h (m + l)) memory"

    anchors: Tensor
    mean: Tensor
    planes: Tensor
    fitted: Tensor

    def __init__(
        self,
        site: Site,
        bits: int = 16,
        anchors: int = 25,
        neighbours: int = 10,
        read_out: ReadOut = "paper",
        fit: Fit = "released",
        anchors_from: Literal["first", "all"] = "first",
        refit_epochs: int | None = 30,
        fit_batch: int = 0,
        fit_rows: int | None = None,
    ) -> None:
        super().__init__(site)
        _check(bits=bits, anchors=anchors, neighbours=neighbours, refit_epochs=refit_epochs, fit_rows=fit_rows)
        if fit_batch < 0:
            raise UserError(f"EcoFormer cannot be fitted on batch {fit_batch}; attention.fit_batch counts from 0.")
        for key, value, choices in (
            ("read_out", read_out, ("paper", "released")),
            ("fit", fit, ("released", "strong", "klsh")),
            ("anchors_from", anchors_from, ("first", "all")),
        ):
            if value not in choices:
                raise UserError(f'EcoFormer has no {key} "{value}"; choose {", ".join(choices)}.')
        self.bits, self.neighbours, self.read_out, self.fit = bits, neighbours, read_out, fit
        self.anchors_from, self.refit_epochs, self.fit_batch, self.fit_rows = (
            anchors_from, refit_epochs, fit_batch, fit_rows,
        )  # fmt: skip
        self.bias = power_bias(bits) if read_out == "paper" else bits + 1
        self.shared, self.value, self.out = (Affine(site.dim, site.dim) for _ in range(3))
        width = site.dim // site.heads
        self.register_buffer("anchors", F.normalize(torch.randn(site.heads, anchors, width), dim=-1))
        self.register_buffer("mean", torch.full((site.heads, anchors), math.exp(-0.5)))
        self.register_buffer("planes", torch.randn(site.heads, bits, anchors))
        self.register_buffer("fitted", torch.tensor(False))
        self._tell_shortage(anchors)

    def softmax_maps(self) -> Maps:
        """The shared map is that of the queries, as in the released code; there are no keys of their own."""
        named = (("query", self.shared), ("value", self.value), ("out", self.out))
        return {name: (linear.weight, linear.bias) for name, linear in named}

    def attend(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks
    ) -> Float[Tensor, "b n d"]:
        q = self.shared(x)
        with torch.autocast(x.device.type, enabled=False):
            codes = self._codes(q.to(torch.promote_types(x.dtype, torch.float32)), masks.context)
            scale = F.pad(codes.new_ones(self.bits), (0, 1), value=self.bias)
        return shared_attention(codes, x, masks.context, self.value, self.out, scale, self.read_out == "released")

    def _codes(self, q: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b n h k"]:
        """h_t of each head and a 1: the sign of 1, whose hard tanh has no slope."""
        q = q.unflatten(-1, (self.site.heads, -1))
        anchors, mean, planes = (t.to(q.dtype) for t in (self.anchors, self.mean, self.planes))
        similarity, _ = anchor_similarity(q, anchors, mask)
        offset = F.pad(-(planes @ mean[..., None])[..., 0], (0, 1), value=1.0)
        z = torch.baddbmm(offset[:, None], similarity.flatten(1, 2), F.pad(planes, (0, 0, 0, 1)).mT)
        return sign(z.unflatten(1, q.shape[:2]).permute(1, 2, 0, 3).contiguous())

    def due(self, epoch: int, batch: int, step: int) -> bool:
        """On batch `fit_batch` of a pass that refits, or of any while the hash is not fitted."""
        if batch != self.fit_batch:
            return False
        return (self.refit_epochs is not None and epoch % self.refit_epochs == 0) or not self.fitted

    @torch.no_grad()
    def refresh(self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"], masks: Masks) -> None:
        """Draws anchors and fits A and μ to the rows of x that hold a token; without any the hash stays as it is."""
        mask = masks.context if masks.context is not None else x.new_ones(x.shape[:2], dtype=torch.bool)
        rows = mask.any(1).nonzero()[: self.fit_rows, 0]
        if not len(rows):
            return
        x, mask = x[rows], mask[rows]
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            q = F.linear(x.to(wide), self.shared.weight.to(wide), self.shared.bias.to(wide))
            q = q.unflatten(-1, (self.site.heads, -1))
            self._fit(q / norms(q)[..., None], mask)
        self.fitted.fill_(True)

    def _fit(self, q: Float[Tensor, "b n h e"], mask: Bool[Tensor, "b n"]) -> None:
        pool = q[0][mask[0]] if self.anchors_from == "first" else q[mask]
        drawn = torch.randperm(len(pool)).repeat(-(-self.anchors.shape[1] // len(pool)))[: self.anchors.shape[1]]
        anchors = pool[drawn.to(pool.device)].transpose(0, 1)
        similarity, sigma = anchor_similarity(q, anchors, mask)
        real = mask.to(q.dtype)[..., None]
        mean = ((similarity * real).sum(2) / real.sum(1)).mean(1)
        if self.fit == "klsh":
            planes = kulis_grauman(anchors, sigma.mean(1), self.bits)
        else:
            centred = ((similarity - mean[:, None, None]) * real).permute(0, 3, 1, 2)
            graph = labels(q.transpose(1, 2).transpose(0, 1), mask, self.neighbours)
            planes = fit_planes(centred, graph, mask, self.planes.to(q.dtype), self.fit)
        for buffer, value in ((self.anchors, anchors), (self.mean, mean), (self.planes, planes)):
            buffer.copy_(value)

    def _tell_shortage(self, anchors: int) -> None:
        """Says once for each stage where there are fewer tokens than the hash is meant to be fitted to."""
        tokens, site = self.site.context_len, self.site
        labelled = min(self.neighbours, tokens - 1)
        if site.layer == 0 and (tokens < anchors or labelled < self.neighbours):
            log.warning(
                f"EcoFormer in stage {site.stage + 1} has {tokens} tokens in a row at most: {min(anchors, tokens)} of "
                f"{anchors} anchors differ, and a token has {labelled} of {self.neighbours} labels of each sign."
            )


def _check(**sizes: int | None) -> None:
    for key, size in sizes.items():
        if size is not None and size < 1:
            raise UserError(f"EcoFormer needs attention.{key} of at least 1; got {size}.")
