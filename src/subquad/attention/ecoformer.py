"""EcoFormer: energy-saving attention (Liu et al. 2022, https://arxiv.org/abs/2209.09004, Eq. 9-14)."""

import logging
import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from subquad.attention.base import Affine, Discrete, Maps, Refreshable, StatelessAttention, SurrogateGradient
from subquad.ops.hash_fitting import fit_planes, kulis_grauman, labels
from subquad.ops.hashed_attention_on_gpu import hashed_attention
from subquad.ops.hashing import anchor_similarity, norms, power_bias, shared_attention, sign
from subquad.ops.linear_attention_on_gpu import use_gpu_path, weights_of
from subquad.ops.mixed_precision import without_autocast
from subquad.specs import UNKNOWN, Context, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Count, Natural

log = logging.getLogger(__name__)

ReadOut = Literal["paper", "released"]
Fit = Literal["released", "strong", "klsh"]


def naive_codes(
    q: Float[Tensor, "n e"], anchors: Float[Tensor, "m e"], mean: Float[Tensor, " m"], planes: Float[Tensor, "k m"]
) -> Float[Tensor, "n k"]:
    """H(Q): the codes of one head, for one sequence without padding; A is `planes` transposed, μ is `mean`."""
    g = naive_kernel(q / q.norm(dim=1, keepdim=True), anchors) - mean
    return sign(g @ planes.T)  # Eq. 10 and 11; `sign` has the straight-through gradient of Section 3.3


def naive_kernel(q: Float[Tensor, "n e"], anchors: Float[Tensor, "m e"]) -> Float[Tensor, "n m"]:
    """κ: Gaussian similarity of unit vectors to the anchors; its width is their mean squared distance."""
    distance = (q[:, None] - anchors).square().sum(-1)
    return (-distance / (2 * distance.mean())).exp()


def naive_ecoformer(
    h: Float[Tensor, "n k"], v: Float[Tensor, "n e"], read_out: ReadOut = "paper"
) -> Float[Tensor, "n e"]:
    """Attention of one head with codes h of queries, which are also those of the keys."""
    bits = h.shape[1]
    bias = 2 ** math.ceil(math.log2(bits + 1)) if read_out == "paper" else bits + 1
    weights = h @ h.T + bias
    numerator = weights @ v if read_out == "paper" else h @ h.T @ v + bias * v
    return numerator / weights.sum(1, keepdim=True)  # Eq. 9


def naive_labels(q: Float[Tensor, "n e"], neighbours: int) -> Float[Tensor, "n n"]:
    """Y: +1 for the nearest tokens of each token, then -1 for the farthest, which may overwrite; 0 for others."""
    y, count = torch.zeros(len(q), len(q), dtype=q.dtype), min(neighbours, len(q) - 1)
    for i, order in enumerate((q @ q.T).argsort(1)):
        y[i, order[len(q) - count :]] = 1  # Eq. 13, first case
        y[i, order[:count]] = -1  # Eq. 13, second case
    return y


def naive_objective(h: Float[Tensor, "n k"], y: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """The objective of the hash functions."""
    return (h @ h.T - h.shape[1] * y).square().sum()  # Eq. 12


def naive_fit(
    g: Float[Tensor, "b n m"], y: Float[Tensor, "b n n"], planes: Float[Tensor, "k m"], heads: int
) -> Float[Tensor, "k m"]:
    """Fits the rows of A of one head one after another to b sequences, by the rule of the released code."""
    residual, rows = len(planes) * y, []
    scale = heads * g.shape[0] * g.shape[1] * len(planes)
    for start in planes:
        a = start.clone().requires_grad_()
        optimiser = torch.optim.SGD([a], lr=5e-4, momentum=0.9, nesterov=True)
        for _ in range(100):
            optimiser.zero_grad()
            code = (g @ a / 2).tanh()  # sign(z) = 2 sigmoid(z) - 1, relaxed
            (-torch.einsum("bn,bnk,bk->", code, residual, code) / scale).backward()  # Eq. 14
            optimiser.step()
        with torch.no_grad():
            new, old = sign(g @ a), sign(g @ start)
            losses = [-torch.einsum("bn,bnk,bk->", code, residual, code) for code in (new, old)]
            rows.append(a.detach() if losses[0] < losses[1] else start)
            best = sign(g @ rows[-1])
            residual = residual - best[:, :, None] * best[:, None]  # Ŷ_r = Ŷ_{r-1} - h_r h_rᵀ, below Eq. 13
    return torch.stack(rows)


class EcoFormer(StatelessAttention, Refreshable, Discrete, SurrogateGradient):
    """y_t = Σ_i (h_tᵀ h_i + 2^c) v_i / Σ_i (h_tᵀ h_i + 2^c) with codes h = sign(A (κ(q) - μ)) ∈ {±1}^b in each head.

    Queries and keys are one projection q, divided by its length. κ_j(q) = exp(-‖q - s_j‖² / 2σ) for unit vectors s_j,
    the anchors. σ is the mean squared distance of the real tokens of a row to the anchors, and c = ⌈log2(b + 1)⌉.
    Codes pass on the gradient of a hard tanh. The loss of the task does not train A, μ or the anchors: they are buffers
    that `refresh` fits. Before that, A and the anchors are random, and μ is the similarity at the mean distance.

    If there are fewer real tokens than anchors, anchors are repeated. A row of N real tokens has min(`neighbours`,
    N - 1) labels of each sign; a token that would get both gets -1. Padding is left out of anchors, μ, σ, labels and
    sums. `site.dropout` is unused, because no attention weights exist.

    Args:
        bits: number of bits b of a code.
        anchors: number of anchors.
        neighbours: similar and dissimilar tokens of each token that get a label.
        read_out: "paper" is the formula above; "released" has the bias b + 1 in place of 2^c, and in the numerator
            (b + 1) v_t in place of Σ_i (b + 1) v_i.
        fit: how A is found from a batch. "released" minimises Eq. 14 bit by bit by 100 steps of SGD with a relaxed
            sign, and keeps a new row of A if it lowers the objective of hard codes. "strong" minimises the same
            objective from a spectral start at a higher rate (see `fit_planes`). "klsh" takes the random hyperplanes of
            kernelised LSH (Kulis and Grauman 2011), which depend on the anchors only.
        anchors_from: "first" draws the anchors from the real tokens of the first row, "all" from those of all rows.
        refit_epochs: fit in each pass over the training rows whose number (from 0) this divides; null fits once.
        fit_batch: number of the batch (from 0) of such a pass that is used to fit.
        fit_rows: rows of the batch that are used, null for all.

    Why the fast path is equal: h_tᵀ h_i + 2^c is the inner product of codes with one more entry, which is 1 and has
    weight 2^c. So sums over the keys are taken first (Eq. 9, second line), and no n x n matrix is formed. Values are
    summed before they are projected (`shared_attention`). ops/hash_fitting.py minimises Eq. 14 without n x n matrices.

    Examples:
        >>> import torch
        >>> from subquad import EcoFormer, Masks
        >>> layer, x = EcoFormer(dim=64, heads=4), torch.randn(2, 300, 64)
        >>> layer.refresh(x, x, Masks())  # fits the hash functions
        >>> layer(x).shape
        torch.Size([2, 300, 64])

    Released code: own value and bias b + 1 as in read_out=released; a zero vector gives NaN; accepts or rejects a new
    bit for all heads at once (here for each head); fits once (refit_epochs=null), inside a forward pass, and records
    that in a Python attribute, which checkpoints lack; sign(0) = 0 (here and in the paper +1).
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n (d² + m d + h b d)), memory O(n (d + h m)); fitting O(n² d) time, O(n h (m + l)) memory"

    anchors: Tensor
    mean: Tensor
    planes: Tensor
    fitted: Tensor

    def __init__(
        self, site: Site, bits: Count = 16, anchors: Count = 25, neighbours: Count = 10, read_out: ReadOut = "paper",
        fit: Fit = "released", anchors_from: Literal["first", "all"] = "first", refit_epochs: Count | None = 30,
        fit_batch: Natural = 0, fit_rows: Count | None = None,
    ) -> None:  # fmt: skip
        super().__init__(site)
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
        self._warn_of_shortage(anchors)

    def softmax_maps(self) -> Maps:
        """The shared map of queries and keys starts from that of the queries, as in the released code."""
        named = (("query", self.shared), ("value", self.value), ("out", self.out))
        return {name: (linear.weight, linear.bias) for name, linear in named}

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        if use_gpu_path(x, context) and self.read_out == "paper":
            weights, wide = weights_of(self.shared, self.value, self.out), torch.promote_types(x.dtype, torch.float32)
            anchors, mean, planes = (t.to(wide) for t in (self.anchors, self.mean, self.planes))
            return hashed_attention(x, masks.context, weights, anchors, mean, planes, self.bias)
        q = self.shared(x)
        with without_autocast(x):
            codes = self._codes(q.to(torch.promote_types(x.dtype, torch.float32)), masks.context)
            scale = F.pad(codes.new_ones(self.bits), (0, 1), value=self.bias)
        return shared_attention(codes, x, masks.context, self.value, self.out, scale, self.read_out == "released")

    def _codes(self, q: Tokens, mask: Mask) -> Float[Tensor, "b n h k"]:
        """Codes of all heads, [b, n, h, bits + 1]: the last entry is sign(1) = 1, which passes no gradient."""
        q = q.unflatten(-1, (self.site.heads, -1))
        anchors, mean, planes = (t.to(q.dtype) for t in (self.anchors, self.mean, self.planes))
        similarity, _ = anchor_similarity(q, anchors, mask)
        # A (κ - μ) as A κ + offset; the appended row of zeros with offset 1 gives the constant entry.
        offset = F.pad(-(planes @ mean[..., None])[..., 0], (0, 1), value=1.0)
        z = torch.baddbmm(offset[:, None], similarity.flatten(1, 2), F.pad(planes, (0, 0, 0, 1)).mT)
        return sign(z.unflatten(1, q.shape[:2]).permute(1, 2, 0, 3).contiguous())

    def due(self, epoch: int, batch: int, step: int) -> bool:
        """On batch `fit_batch` of a pass that refits, or of any pass while the hash is not fitted."""
        if batch != self.fit_batch:
            return False
        return (self.refit_epochs is not None and epoch % self.refit_epochs == 0) or not self.fitted

    @torch.no_grad()
    def refresh(self, x: Tokens, context: Context, masks: Masks) -> None:
        """Draws anchors and fits A and μ to the rows of x that have real tokens; without such rows nothing changes."""
        mask = masks.context if masks.context is not None else x.new_ones(x.shape[:2], dtype=torch.bool)
        rows = mask.any(1).nonzero()[: self.fit_rows, 0]
        if not len(rows):
            return
        x, mask = x[rows], mask[rows]
        wide = torch.promote_types(x.dtype, torch.float32)
        with without_autocast(x):
            q = F.linear(x.to(wide), self.shared.weight.to(wide), self.shared.bias.to(wide))
            q = q.unflatten(-1, (self.site.heads, -1))
            self._fit(q / norms(q)[..., None], mask)
        self.fitted.fill_(True)

    def _fit(self, q: Float[Tensor, "b n h e"], mask: Bool[Tensor, "b n"]) -> None:
        """Fits the buffers to unit vectors q."""
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

    def _warn_of_shortage(self, anchors: int) -> None:
        """Warns, once for each stage, if there are fewer tokens than anchors or labels."""
        tokens, site = self.site.context_len, self.site
        labelled = min(self.neighbours, tokens - 1)
        if site.layer == 0 and tokens != UNKNOWN and (tokens < anchors or labelled < self.neighbours):
            log.warning(
                f"EcoFormer in stage {site.stage + 1} has {tokens} tokens in a row at most: {min(anchors, tokens)} of "
                f"{anchors} anchors differ, and a token has {labelled} of {self.neighbours} labels of each sign."
            )
