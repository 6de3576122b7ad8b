"""The forward pass of DBA's self-attention on a CPU in one pass over tiles of tokens, where no gradient is asked for.

See `bilinear.cpp` for the formulas, `subquad.ops.bilinear` for the same by torch's operators.
"""

import ctypes
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.kernels.operands import VECTOR, fit, loaded

_KERNEL = "bilinear"
_COUNTS = ("batch", "tokens", "dim", "p", "e", "heads", "z_step", "threads")
_WEIGHTS = ("wq", "bq", "wk", "wv", "bv", "fc", "fr", "br", "wo", "bo", "r")


class _Call(ctypes.Structure):
    """`Call` of bilinear.cpp, in its order."""

    _fields_ = (
        *((name, ctypes.c_long) for name in _COUNTS),
        ("root", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("x", "z", *_WEIGHTS, "seen", "y", "a", "scratch")),
    )


def takes(x: Tensor, z: Tensor, weights: Sequence[Tensor], heads: int) -> bool:
    """Whether the kernel is for these operands and may run where this is called."""
    d_p = len(weights[5])
    return (
        d_p % VECTOR == x.shape[-1] // heads % VECTOR == 0
        and fit(_KERNEL, x[None], z[None])
        and all(
            w.is_cpu and w.dtype is torch.float32 and type(w) in (Tensor, nn.Parameter) and w.is_contiguous()
            for w in weights
        )
    )


def bilinear(
    x: Float[Tensor, "b n d"],
    z: Float[Tensor, "#b p d"],
    weights: Sequence[Tensor],
    keep: Bool[Tensor, "b n"] | None,
    heads: int,
    scale: float,
) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b p d"]]:
    """Y and W_r X, without gradients, for what `takes` takes.

    `weights` are those of W_Q and their bias, W_K, W_V and bias, F_c, F_r and bias, W_O and bias, and R.
    """
    (batch, tokens, dim), p = x.shape, z.shape[1]
    x, z, seen = x.contiguous(), z.contiguous(), None if keep is None else keep.contiguous()
    y, a = torch.empty_like(x), x.new_empty(batch, 3 * p, dim)
    sizes = (batch, tokens, dim, p, len(weights[-1]), heads, 0 if len(z) == 1 else p * dim, torch.get_num_threads())
    places = (None if t is None else t.data_ptr() for t in (x, z, *weights, seen, y, a))
    call = _Call(*sizes, scale**0.5, *places)
    functions = loaded(_KERNEL)
    memory = x.new_empty(functions.room(ctypes.byref(call)))
    call.scratch = memory.data_ptr()
    functions.forward(ctypes.byref(call))
    return y, a[:, :p]
