"""FP-, Bi- and LSH-EcoFormer (Liu et al. 2022, https://arxiv.org/abs/2209.09004, Eq. 4 and Tables 4 and 5)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from subquad.attention.base import Affine, Discrete, Maps, StatelessAttention, SurrogateGradient
from subquad.ops.affine import affine
from subquad.ops.hashing import norms, shared_attention, sign, with_bias
from subquad.ops.mixed_precision import without_autocast
from subquad.ops.random_features import orthogonal_directions
from subquad.specs import Context, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Count


def naive_features(q: Float[Tensor, "n e"], directions: Float[Tensor, "f e"]) -> Float[Tensor, "n f"]:
    """φ: positive random features of q divided by its length, whose inner products average to exp(qᵀk)."""
    q = q / q.norm(dim=1, keepdim=True)
    return (q @ directions.T - 0.5).exp() / math.sqrt(len(directions))


def naive_weights(
    q: Float[Tensor, "n e"], directions: Float[Tensor, "f e"], variant: str, planes: Float[Tensor, "k f"] | None = None
) -> Float[Tensor, "n n"]:
    """Weights of one head of the variant "fp", "bi" or "lsh", for one sequence without padding."""
    phi = naive_features(q, directions)
    if variant == "fp":
        return phi @ phi.T  # numerator of Eq. 4a
    h = sign(phi - phi.mean()) if planes is None else sign(phi @ planes.T)
    return h @ h.T + 2 ** math.ceil(math.log2(h.shape[1] + 1))  # numerator of Eq. 9


def naive_attention(weights: Float[Tensor, "n n"], v: Float[Tensor, "n e"]) -> Float[Tensor, "n e"]:
    """One head with given weights."""
    return weights / weights.sum(1, keepdim=True) @ v  # Eq. 4a, Eq. 9


class FPEcoFormer(StatelessAttention):
    """y_t = φ(q_t)ᵀ Σ_i φ(q_i) ⊗ v_i / φ(q_t)ᵀ Σ_i φ(q_i) in each head: queries are the keys, and unit vectors.

    φ(q)_r = exp(w_rᵀ q - 1/2) / √F with orthogonal random w_r, the same for all heads: φ(q)ᵀφ(k) averages to exp(qᵀk),
    and with unit vectors nothing overflows. Padding is left out of the sums. `site.dropout` is unused, because no
    attention weights exist.

    Args:
        features: number F of features.

    Why the fast path is equal: the sums over the keys are taken first (Eq. 4b), so no n x n matrix is formed.

    Examples:
        >>> import torch
        >>> from subquad import FPEcoFormer
        >>> layer = FPEcoFormer(dim=64, heads=4, features=64)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: none; its table row equals Performer's with separate queries and keys of any length.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n d (d + F)), memory O(n (d + h F))"

    directions: Tensor

    def __init__(self, site: Site, features: Count = 256) -> None:
        super().__init__(site)
        self.shared, self.value, self.out = (Affine(site.dim, site.dim) for _ in range(3))
        self.register_buffer("directions", orthogonal_directions(features, site.dim // site.heads))

    def softmax_maps(self) -> Maps:
        """The shared map of queries and keys starts from that of the queries, as in the released code."""
        named = (("query", self.shared), ("value", self.value), ("out", self.out))
        return {name: (linear.weight, linear.bias) for name, linear in named}

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        q = self.shared(x).unflatten(-1, (self.site.heads, -1))
        with without_autocast(x):
            q = q.to(torch.promote_types(x.dtype, torch.float32))
            directions = self.directions.to(q.dtype)
            # exp(w_rᵀ q - 1/2) / √F = exp(w_rᵀ q - (1 + ln F) / 2)
            shift = directions.new_full((len(directions),), -(1 + math.log(len(directions))) / 2)
            phi = affine(q / norms(q)[..., None], directions, shift).exp()
            features, scale = self._features(phi, masks.context)
        return shared_attention(features, x, masks.context, self.value, self.out, scale)

    def _features(
        self, phi: Float[Tensor, "b n h f"], mask: Mask
    ) -> tuple[Float[Tensor, "b n h k"], Float[Tensor, " k"]]:
        """The vectors whose inner products are the weights, and the scale of each of their entries."""
        return phi, phi.new_ones(phi.shape[-1])


class BiEcoFormer(FPEcoFormer, Discrete, SurrogateGradient):
    """EcoFormer's weights h_tᵀ h_i + 2^c with codes h = sign(φ(q) - mean φ) of F bits; φ as in FPEcoFormer.

    The mean is over the real tokens of a row and the features of a head; c = ⌈log2(F + 1)⌉. Codes pass on the gradient
    of a hard tanh.

    Args:
        features: number F of features, which is also the number of bits.

    Examples:
        >>> import torch
        >>> from subquad import BiEcoFormer
        >>> layer = BiEcoFormer(dim=64, heads=4, features=64)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: none; a descendant (ShiftAddViT) averages over the whole batch, with F + 1 for 2^c and v_t for Σ v_i.
    """

    complexity = "time O(n d (d + F)), memory O(n (d + h F))"

    def _features(
        self, phi: Float[Tensor, "b n h f"], mask: Mask
    ) -> tuple[Float[Tensor, "b n h k"], Float[Tensor, " k"]]:
        if mask is None:
            mean = phi.mean((1, 3), keepdim=True)
        else:
            real = mask[:, :, None, None].to(phi.dtype)
            mean = (phi.mean(3, keepdim=True) * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp_min(1)
        return with_bias(sign(phi - mean))


class LSHEcoFormer(FPEcoFormer, Discrete, SurrogateGradient):
    """EcoFormer's weights h_tᵀ h_i + 2^c with codes h = sign(R φ(q)) of b = `bits`; φ as in FPEcoFormer.

    R has independent N(0, 1) entries for each head, drawn once. Codes pass on the gradient of a hard tanh.

    Args:
        bits: number b of bits of a code.
        features: number F of features.

    Examples:
        >>> import torch
        >>> from subquad import LSHEcoFormer
        >>> layer = LSHEcoFormer(dim=64, heads=4, bits=8)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: none; a descendant (ShiftAddViT) draws R anew in each call, which is no function of the input.
    """

    complexity = "time O(n (d² + F d + h b F)), memory O(n (d + h F))"

    planes: Tensor

    def __init__(self, site: Site, bits: Count = 16, features: Count = 256) -> None:
        super().__init__(site, features)
        self.register_buffer("planes", torch.randn(site.heads, bits, features))

    def _features(
        self, phi: Float[Tensor, "b n h f"], mask: Mask
    ) -> tuple[Float[Tensor, "b n h k"], Float[Tensor, " k"]]:
        return with_bias(sign(torch.einsum("bnhf,hkf->bnhk", phi, self.planes.to(phi.dtype))))
