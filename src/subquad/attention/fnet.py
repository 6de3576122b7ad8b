"""FNet (Lee-Thorp et al. 2021, https://arxiv.org/abs/2105.03824, Eq. 3)."""

from typing import Any

import torch
from torch import Tensor

from subquad.attention.base import StatelessAttention
from subquad.ops.masks import zero_padding
from subquad.specs import Context, Masks, Pattern, Tokens
from subquad.utils.derivatives import by_torch, one_at_a_time


class FNet(StatelessAttention):
    """Y = Re(FFT_tokens(FFT_width(X))) = C_n X C_d - S_n X S_d: mixing without parameters, weights or heads.

    Padding is set to 0, and the transform always has the longest length of the site, so that outputs at real tokens do
    not depend on the padding of a batch. Half precision is transformed in float32. `site.dropout` is unused.

    Why the fast path is equal: X is real, so half of the spectrum is computed and the other half is its mirror image,
    Y_{i,c} = Y_{-i,-c}. Cosine and sine matrices are symmetric, so the gradient of X is the same transform of the
    gradient of Y, and nothing is saved for the backward pass.

    Examples:
        >>> import torch
        >>> from subquad import FNet
        >>> layer = FNet(dim=64, heads=4, max_len=512)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: as the paper; the transform has the padded length of the batch, and padding is mixed in.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n d log(n d)), memory O(n d)"

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        transform = _real_fourier if by_torch() else _RealFourier.apply
        y: Tensor = transform(zero_padding(x, masks.context), self.longest(x, x)[0])
        return y


class _RealFourier(torch.autograd.Function):
    """The real part of the Fourier transform over `length` tokens, zeros after the given ones, and the width."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, length: int) -> Tensor:
        ctx.length = length
        return _real_fourier(x, length)

    @staticmethod
    @one_at_a_time
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _real_fourier(gradient, ctx.length), None


def _real_fourier(x: Tokens, length: int) -> Tokens:
    """Rows 0 to n - 1 of the real part of the two-dimensional transform of `length` x d numbers."""
    n, d = x.shape[1:]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    half = torch.fft.rfft2(wide, s=(length, d)).real
    known = half.shape[2]
    y = torch.empty_like(wide)
    y[..., :known] = half[:, :n]
    mirrored = half[..., 1 : d - known + 1]
    y[:, :1, known:] = mirrored[:, :1].flip(2)
    y[:, 1:, known:] = mirrored[:, length - n + 1 :].flip(1, 2)
    return y.to(x.dtype)
