"""The influence of each token on each output of an attention on one input, and its spectrum."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Attention, AttentionFactory
from subquad.attention.softmax import Softmax
from subquad.backbones.encoder import EncoderFactory, is_standalone, sized
from subquad.backbones.s4 import S4Encoder
from subquad.backbones.segment_recurrence import SegmentEncoder
from subquad.specs import DataSpec, Masks, Pattern, Site
from subquad.utils.errors import UserError

LINEAR = 1e-8
"""Largest relative residual, in float64, up to which a mechanism counts as linear in its values."""


SMALL = 1e-10
"""Singular values below this share of the largest one do not count: terms such as eps in a denominator cause them."""


def square_site(length: int, dim: int, heads: int) -> Site:
    """A self-attention of one layer; the tokens are an image where their number is a square."""
    side = math.isqrt(length)
    return Site(
        pattern=Pattern.SELF, dim=dim, heads=heads, query_len=length, context_len=length,
        grid=(side, side) if side * side == length else None,
    )  # fmt: skip


def build(
    factory: AttentionFactory | EncoderFactory, length: int, dim: int, heads: int, seed: int = 0
) -> tuple[nn.Module, Float[Tensor, "1 n d"]]:
    """A mechanism with its initial weights, and N(0, 1) tokens; both in float64, the same at each call."""
    torch.manual_seed(seed)
    made: nn.Module
    if is_standalone(factory):
        spec = DataSpec(max_len=length, vocab=2, classes=2)
        made = sized(factory, layers=1, dim=dim, heads=heads, ffn=dim)(spec=spec)
    else:
        make: AttentionFactory = factory  # type: ignore[assignment]
        made = make(site=square_site(length, dim, heads))
    generator = torch.Generator().manual_seed(seed + 1)
    return made.eval().double(), torch.randn(1, length, dim, generator=generator, dtype=torch.float64)


def mapping(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The function to analyse: to outputs `[b, n, d]` of an attention or S4, or to last latents `[b, l, d]`."""
    if isinstance(module, Attention):
        return lambda x: module(x, x, Masks())[0]
    if isinstance(module, SegmentEncoder):
        return lambda x: module.latents_of(module.cut(x, None))
    if isinstance(module, S4Encoder):
        return lambda x: module.encoded(x.mT, None)[0].mT
    raise UserError(f"{type(module).__name__} has no output for each token; choose another attention.")


def influence(module: nn.Module, x: Float[Tensor, "1 n d"]) -> Float[Tensor, "m n"]:
    """‖∂y_i / ∂x_j‖_F: how much output i changes with input j, through values, weights and everything else.

    Rows of a batch are independent, so one backward pass over d copies gives the d gradients of one output.
    For mechanisms with a surrogate gradient, the derivative is the surrogate.
    """
    outputs = range(mapping(module)(x).shape[1])
    return torch.stack([gradient.square().sum((0, 2)).sqrt() for gradient in _gradients(module, x, outputs)])


def _gradients(
    module: nn.Module, x: Float[Tensor, "1 n d"], outputs: Iterable[int]
) -> Iterator[Float[Tensor, "d n d"]]:
    """∂y_i / ∂x of each of these outputs i: of its d channels, in every channel of every token."""
    function, width = mapping(module), x.shape[-1]
    channels = torch.arange(width)
    for i in outputs:
        copies = x.expand(width, -1, -1).clone().requires_grad_()
        yield torch.autograd.grad(function(copies)[channels, i, channels].sum(), copies)[0]


def passed_rank(module: nn.Module, x: Float[Tensor, "1 n d"]) -> int:
    """In how many independent directions the second half of the outputs changes with the first half of the tokens.

    The numerical rank of ∂y[n/2:] / ∂x[:n/2], at most d n/2: what a mechanism passes on of the tokens that a later one
    cannot see itself, counted in numbers. A fixed compression bounds it whatever n is. Derivatives as in `influence`.
    """
    n = x.shape[1]
    rows = [gradient[:, : n // 2].flatten(1) for gradient in _gradients(module, x, range(n // 2, n))]
    return int(torch.linalg.matrix_rank(torch.cat(rows), rtol=SMALL))


@torch.no_grad()
def value_weights(attention: Attention, x: Float[Tensor, "1 n d"]) -> Float[Tensor, "h n n"] | None:
    """A_h with y = Σ_h A_h V_h W_O,h: the exact weights of each head on this input; None if there are none.

    They are computed from outputs alone. With value maps that pick features of x, head h gives A_h X, and since X has
    at least as many features as tokens, A_h = (A_h X) X⁺. The result is None unless these A_h reproduce the outputs of
    the unchanged mechanism up to LINEAR, which needs outputs that are linear in the values.
    """
    _, n, dim = x.shape
    if n > dim:
        raise UserError(f"Exact weights of {n} tokens need a width of at least {n}; it is {dim}.")
    probed = copy.deepcopy(attention)
    maps = _value_and_output(probed)
    if maps is None:
        return None
    value, out = maps
    heads, width = attention.site.heads, dim // attention.site.heads
    eye = torch.eye(dim, dtype=x.dtype)
    own = _value_and_output(attention)
    out.weight.copy_(eye)
    for bias in (out.bias, value.bias):
        if bias is not None:
            bias.zero_()

    def by_head(weight: Tensor) -> Tensor:
        value.weight.copy_(weight)
        return mapping(probed)(x)[0].unflatten(-1, (heads, width)).transpose(0, 1)

    picked = [by_head(eye[r : r + width].repeat(heads, 1)) for r in range(0, dim, width)]
    weights = torch.cat(picked, -1) @ torch.linalg.pinv(x[0])
    assert own is not None, "a copy has the maps of the original"
    wanted = mapping(attention)(x)[0]
    values = own[0](x[0]).unflatten(-1, (heads, width)).transpose(0, 1)
    reproduced = own[1]((weights @ values).transpose(0, 1).flatten(-2))
    return weights if float((reproduced - wanted).norm() / wanted.norm()) < LINEAR else None


def _value_and_output(attention: Attention) -> tuple[nn.Linear, nn.Linear] | None:
    """The linear maps `value` and `out` of a mechanism; None unless it has both and they are d x d."""
    owner: Any = getattr(attention, "projections", attention)
    maps = tuple(getattr(owner, name, None) for name in ("value", "out"))
    square = (attention.site.dim, attention.site.dim)
    if all(isinstance(m, nn.Linear) and m.weight.shape == square for m in maps):
        return maps  # type: ignore[return-value]
    return None


def softmax_like(attention: nn.Module, site: Site) -> Softmax:
    """Softmax attention, with the projections of the mechanism if it has four of the same shapes."""
    torch.manual_seed(0)
    softmax = Softmax(site).double().eval()
    own, weights = softmax.state_dict(), attention.state_dict()
    if all(name in weights and weights[name].shape == own[name].shape for name in own):
        softmax.load_state_dict({name: weights[name] for name in own})
    return softmax


def cumulative_spectrum(matrix: Float[Tensor, "*b m n"]) -> Float[Tensor, "*b r"]:
    """Sum of the k largest singular values over the sum of all, for k = 1, 2, ..."""
    values = torch.linalg.svdvals(matrix)
    return values.cumsum(-1) / values.sum(-1, keepdim=True)


def effective_rank(matrix: Float[Tensor, "*b m n"]) -> Float[Tensor, "*b"]:
    """exp of the entropy of the normalised singular values (Roy and Vetterli 2007): n for n equal ones, 1 for one."""
    values = torch.linalg.svdvals(matrix)
    shares = values / values.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()
