"""Softmax attention of given queries, keys and values, with fast dropout on a CPU.

torch's fused kernels have dropout on a GPU only. On a CPU, `scaled_dot_product_attention` with dropout stores the
weights, draws a number of full precision for each of them, and checks all of them for rows without keys.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import compress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import cuda
from torch.nn.attention import SDPBackend, sdpa_kernel

from subquad.kernels import short_attention_kernel as kernel
from subquad.ops.attention_in_parts import attention_in_parts, divides
from subquad.ops.dropout import dropout, in_16_bits
from subquad.ops.masks import masked_softmax
from subquad.utils.derivatives import by_torch, differentiated_once
from subquad.utils.devices import on_cpu, processors

Parts = Tensor | Sequence[Tensor]

_BLOCK, _MANY_NUMBERS = 32, 1 << 21

_OTHERS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def softmax_attention(
    q: Tensor, k: Parts, v: Parts, attn_mask: Tensor | None = None, dropout_p: float = 0.0, scale: float | None = None
) -> Tensor:
    """Y = dropout(softmax(scale · Q Kᵀ)) V, as `F.scaled_dot_product_attention` with the same arguments.

    Queries that see no key get zeros. Without dropout, and on a GPU, this calls torch's fused kernel; for few keys on a
    CPU the package's own, which drops the same weights as the operators that it replaces. With dropout and many weights
    on a CPU, it computes them in parts (see `attention_in_parts`), and drops others. Half precision with dropout on a
    CPU is computed in single precision: in half, torch would write out all weights, by slow products.

    Args:
        q: [..., n, e].
        k: [..., m, e], or several parts along m, which the CPU kernel reads without concatenating them.
        v: [..., m, c], or several parts along m.
        attn_mask: Boolean, True at the keys that a query sees; or numbers that are added to the logits.
        scale: 1/√e by default.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    keys, values = ((x,) if isinstance(x, Tensor) else x for x in (k, v))
    if dropout_p and on_cpu(q) and q.dtype in (torch.bfloat16, torch.float16) and not torch.compiler.is_compiling():
        keys, values = ([x.float() for x in parts] for parts in (keys, values))
        mask = attn_mask.float() if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
        with torch.autocast("cpu", enabled=False):
            return softmax_attention(q.float(), keys, values, mask, dropout_p, scale).to(q.dtype)
    in_parts = divides(q, keys, values, attn_mask, dropout_p)
    weights_count = math.prod(q.shape[:-1]) * sum(x.shape[-2] for x in keys)
    bits_suffice = dropout_p == 0 or in_16_bits(dropout_p, weights_count)
    if not in_parts and bits_suffice and kernel.takes(q, keys, values, attn_mask):
        return kernel.short_attention(q, keys, values, attn_mask, scale, dropout_p)
    k, v = (x[0] if len(x) == 1 else torch.cat(tuple(x), -2) for x in (keys, values))
    if in_parts:
        return attention_in_parts(q, k, v, attn_mask, dropout_p, scale)
    plain = q.dtype in (torch.float32, torch.float64) and (attn_mask is None or attn_mask.dtype == torch.bool)
    if dropout_p == 0 or not on_cpu(q) or not plain or torch.compiler.is_compiling():
        return fused_attention(q, k, v, attn_mask, dropout_p, scale)
    logits = (q * scale) @ k.mT
    if attn_mask is None:
        weights = logits.softmax(-1)
    elif attn_mask.shape[-2] == 1:  # padding: one row for all queries
        logits += torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill(~attn_mask, torch.finfo(q.dtype).min / 2)
        weights, v = logits.softmax(-1), v.masked_fill(~attn_mask.mT, 0)
    else:
        weights = masked_softmax(logits, attn_mask)
    return dropout(weights, dropout_p, training=True) @ v


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, scale: float | None = None
) -> Tensor:
    """`F.scaled_dot_product_attention`, on a GPU with operands that its fused kernels take.

    They take widths that are multiples of 8 (in single precision of 4), and last axes, also of the mask, whose elements
    are adjacent in memory. With others, torch writes out all weights.
    """
    if by_torch():
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, scale=scale)
    if not q.is_cuda:
        return differentiated_once(F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, scale=scale))
    return fused_attention_on_gpu(q, k, v, attn_mask, dropout_p, scale)


def fused_attention_on_gpu(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, dropout_p: float, scale: float | None
) -> Tensor:
    """`fused_attention` with widened and copied operands where that is needed.

    With a mask cuDNN's kernel is not used: from torch 2.11 to 2.13, its gradients in half precision are NaN at lengths
    of 64 above a multiple of 128 (https://github.com/pytorch/pytorch/issues/196678). Few queries over many keys are
    multiplied by products (see `_few_blocks`).
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if (attn_mask is None or attn_mask.dtype == torch.bool) and _few_blocks(q, k):
        weights = masked_softmax((q if scale == 1 else q * scale) @ k.mT, attn_mask)
        return (F.dropout(weights, dropout_p) if dropout_p else weights) @ v
    queries, keys, values = (_adjacent(_widened(x)) for x in (q, k, v))
    mask = None if attn_mask is None else _adjacent(attn_mask)
    with nullcontext() if mask is None else _without_cudnn():
        y = F.scaled_dot_product_attention(queries, keys, values, mask, dropout_p, scale=scale)
    return differentiated_once(y)[..., : v.shape[-1]]


def _few_blocks(q: Tensor, k: Tensor) -> bool:
    """Whether a fused kernel would leave most of a GPU idle.

    It gives a block of 32 queries or more to each processor, which reads all keys one after another: 131,072 keys of
    width 512 took an H200 20 ms. Up to `_MANY_NUMBERS`, 4,096 such keys, starting more operators gains little. An
    exported program has sizes that vary.
    """
    if torch.compiler.is_exporting() or k.shape[-2] * k.shape[-1] < _MANY_NUMBERS:
        return False
    return 2 * math.prod(q.shape[:-2]) * -(-q.shape[-2] // _BLOCK) <= processors(q)


def _without_cudnn() -> Any:
    """A context in which scaled_dot_product_attention uses its other kernels; of these, those that were allowed."""
    if torch.compiler.is_compiling():  # which cannot read the switches
        return sdpa_kernel(_OTHERS)
    if not cuda.cudnn_sdp_enabled():
        return nullcontext()
    allowed = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()
    return sdpa_kernel(list(compress(_OTHERS, allowed)))


def _widened(x: Tensor) -> Tensor:
    missing = -x.shape[-1] % 8
    return F.pad(x, (0, missing)) if missing else x


def _adjacent(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
