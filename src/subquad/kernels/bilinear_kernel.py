"""DBA's self-attention on a CPU, forward and backward.

See `bilinear.cpp` and `bilinear_backward.cpp` for the formulas, and `subquad.ops.bilinear` for the implementation with
torch's operators.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.kernels.build import library
from subquad.kernels.operands import VECTOR, address, loaded, may_run, operand_type, run
from subquad.specs import Mask, Tokens

_FORWARD, _BACKWARD = "bilinear", "bilinear_backward"
_TILE = 96
_COUNTS = ("batch", "tokens", "dim", "p", "e", "heads", "z_step", "threads", "keep")
_WEIGHTS = ("wq", "bq", "wk", "wv", "bv", "fc", "fr", "br", "wo", "bo", "r")
_MEMORY = ("seen", "y", "a", "scratch", "kept")


class _Call(ctypes.Structure):
    """`Call` of bilinear.h, with the same order of fields."""

    _fields_ = (
        *((name, ctypes.c_long) for name in _COUNTS),
        ("root", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("x", "z", *_WEIGHTS, *_MEMORY)),
    )


class _Gradients(ctypes.Structure):
    """`Gradients` of bilinear_backward.cpp, with the same order of fields."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("y", "a", "x", "z", *_WEIGHTS, "scratch"))


def takes(x: Tensor, z: Tensor, weights: Sequence[Tensor], heads: int, gradients: bool) -> bool:
    """Whether the kernel supports these operands and may run in this context.

    It reads memory by the shapes of x, Z and R, which must therefore be those of all weights. With `gradients`, all
    threads process one row of the batch at a time, so the row needs at least a tile per thread.
    """
    (batch, tokens, dim), (rows, p, width), e = x.shape, z.shape, len(weights[-1])
    square, vector = (dim, dim), (dim,)
    shapes = (square, vector, square, square, vector, (p, dim), (p, dim), (p,), square, vector, (e, dim))
    return (
        p % VECTOR == dim // heads % VECTOR == e % heads == 0
        and rows in (1, batch)
        and width == dim
        and all(w.shape == shape for w, shape in zip(weights, shapes, strict=True))
        and batch * tokens > 0
        and (not gradients or tokens >= _TILE * torch.get_num_threads())
        and may_run(_FORWARD, x, z)
        and (not gradients or library(_BACKWARD) is not None)
        and all(
            type(w) in (nn.Parameter, operand_type()) and w.dtype is torch.float32 and w.is_cpu and w.is_contiguous()
            for w in weights
        )
    )


def bilinear(
    x: Tokens, z: Float[Tensor, "#b p d"], weights: Sequence[Tensor], keep: Mask, heads: int, scale: float,
    gradients: bool = False,
) -> tuple[Tokens, Float[Tensor, "b 3*p d"], Float[Tensor, " _"]]:  # fmt: skip
    """DBA's self-attention, for operands that `takes` accepts.

    Args:
        weights: W_Q, b_Q, W_K, W_V, b_V, F_c, F_r, b_r, W_O, b_O and R.
        keep: False for padded tokens.

    Returns:
        Y, A and a buffer, which `backward` needs if `gradients` is set and which is empty otherwise.
    """
    x, z, keep = x.contiguous(), z.contiguous(), None if keep is None else keep.contiguous()
    y, a = _numbers(*x.shape), _numbers(len(x), 3 * z.shape[1], x.shape[2])
    call, functions = _call(x, z, weights, heads, scale, gradients, keep, y, a), _functions(_FORWARD)
    kept = _numbers(functions.kept(ctypes.byref(call)) if gradients else 0)
    memory = _numbers(functions.room(ctypes.byref(call)))
    call.kept, call.scratch = address(kept), address(memory)
    run(functions.forward, ctypes.byref(call))
    return y, a, kept


def backward(
    dy: Tokens, d_a: Float[Tensor, "b 3*p d"] | None, x: Tokens, z: Float[Tensor, "#b p d"], weights: Sequence[Tensor],
    keep: Mask, heads: int, scale: float, a: Float[Tensor, "b 3*p d"], kept: Float[Tensor, " _"],
) -> list[Tensor]:  # fmt: skip
    """Gradients of X, Z and the weights, given those of Y and A."""
    x, z, keep = x.contiguous(), z.contiguous(), None if keep is None else keep.contiguous()
    dy, d_a = dy.contiguous(), None if d_a is None else d_a.contiguous()
    results = [_numbers(*t.shape) for t in (x, z, *weights)]
    call, functions = _call(x, z, weights, heads, scale, True, keep, None, a), _functions(_BACKWARD)
    call.kept = address(kept)
    memory = _numbers(functions.room(ctypes.byref(call)))
    to = _Gradients(*_places(dy, d_a, *results, memory))
    run(functions.backward, ctypes.byref(call), ctypes.byref(to))
    return results


def _call(
    x: Tensor, z: Tensor, weights: Sequence[Tensor], heads: int, scale: float, gradients: bool,
    keep: Tensor | None, y: Tensor | None, a: Tensor,
) -> _Call:  # fmt: skip
    """The arguments of a call. They hold addresses only and keep no tensor alive."""
    (batch, tokens, dim), p = x.shape, z.shape[1]
    z_step = 0 if len(z) == 1 else p * dim
    return _Call(
        batch, tokens, dim, p, len(weights[-1]), heads, z_step, torch.get_num_threads(), gradients, scale**0.5,
        *_places(x, z, *weights, keep, y, a),
    )  # fmt: skip


@cache
def _functions(kernel: str) -> ctypes.CDLL:
    functions = loaded(kernel)
    for name in ("room", "kept") if kernel == _FORWARD else ("room",):
        getattr(functions, name).restype = ctypes.c_long
    return functions


def _numbers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def _places(*tensors: Tensor | None) -> list[int | None]:
    return [address(t) for t in tensors]
