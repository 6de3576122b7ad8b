"""The cost of each PyTorch operator in multiplications, additions and other operations.

Conventions, the same for every operator:
    - accumulating m terms takes m additions: accumulators start at 0, as multiply-accumulate units do;
    - "others" are exponentials, logarithms, roots, divisions, trigonometric functions, comparisons, random draws, and
      all arithmetic of integers and Booleans (indices, masks, hash buckets);
    - moving, copying, selecting and changing signs is free;
    - a fused operator costs what its formula costs, even if its kernel recomputes parts; padding counts like tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_iter


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of multiplications, additions (subtractions among them) and other operations."""

    mul: int = 0
    add: int = 0
    other: int = 0

    def __add__(self, more: "Tally") -> "Tally":
        return Tally(self.mul + more.mul, self.add + more.add, self.other + more.other)

    def __mul__(self, times: int) -> "Tally":
        return Tally(self.mul * times, self.add * times, self.other * times)

    __rmul__ = __mul__


Rule = Callable[[Sequence[Any], dict[str, Any], Any], Tally]
"""Maps the positional arguments, keyword arguments and result of a call to its cost."""


def _names(text: str) -> list[str]:
    return text.split()


CODE_PRESERVING = frozenset(
    _names("""
    _reshape_alias _to_copy _unsafe_view alias as_strided cat chunk clone constant_pad_nd contiguous detach diagonal
    expand flatten flip index index_select gather movedim narrow permute repeat reshape roll select slice split
    split_with_sizes squeeze stack t to transpose unbind unflatten unfold unsqueeze view lift_fresh neg
    """)
)
"""Operators without cost whose result is a binary code if their argument is one."""

FREE = CODE_PRESERVING | frozenset(
    _names("""
    _conj arange as_strided_scatter broadcast_tensors complex conj copy_ diag_embed embedding empty empty_like
    empty_permuted empty_strided eye fill fill_ full full_like index_fill masked_fill masked_fill_
    new_empty new_empty_strided new_full new_ones new_zeros ones ones_like pixel_shuffle pixel_unshuffle promote_types
    real imag reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d resize_ scalar_tensor scatter
    select_backward select_scatter set_ slice_backward slice_scatter tril tril_ triu triu_ unfold_copy
    view_as_complex view_as_real view_copy where zero_ zeros zeros_like
    """)
)
"""Operators without cost."""

_ONE_OTHER = _names("""
    acos asin atan atan2 bernoulli bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
    ceil clamp_max clamp_min cos cosh cummax cummin div eq erf erfc exp exp2 expm1 floor floor_divide fmod ge gt
    hardtanh isfinite isinf isnan le log log10 log1p log2 logical_and logical_not logical_or logical_xor lt maximum
    minimum multinomial ne normal rand rand_like randint randn randn_like random randperm reciprocal relu remainder
    round rsqrt sigmoid sign sin sinh sqrt tan tanh threshold threshold_backward trunc uniform __and__ __lshift__ __or__
    __rshift__ __xor__
""")

_POINTWISE = {
    **dict.fromkeys(_ONE_OTHER, Tally(other=1)),
    "mul": Tally(mul=1),
    "square": Tally(mul=1),
    "elu": Tally(add=1, other=2),
    "elu_backward": Tally(mul=1, add=1, other=1),
    "gelu": Tally(mul=3, add=1, other=1),  # x · ½ · (1 + erf(x / √2))
    "gelu_backward": Tally(mul=7, add=2, other=2),  # g (Φ(x) + x exp(-x² / 2) / √(2π))
    "silu": Tally(mul=1, other=1),
    "silu_backward": Tally(mul=3, add=2, other=1),  # g σ (1 + x (1 - σ))
    "softplus": Tally(add=1, other=2),  # log(1 + exp x)
    "softplus_backward": Tally(mul=1, add=1, other=2),
    "upsample_bilinear2d": Tally(mul=4, add=3),
    "glu": Tally(mul=1, other=1),
    "leaky_relu": Tally(mul=1, other=1),
    "logaddexp": Tally(add=2, other=3),
    "sigmoid_backward": Tally(mul=2, add=1),
    "tanh_backward": Tally(mul=2, add=1),
    "native_dropout": Tally(mul=1, other=1),
    "native_dropout_backward": Tally(mul=1),
}
"""Cost of each element of the result."""

_REDUCTIONS = {
    "sum": (Tally(add=1), Tally()),
    "cumsum": (Tally(add=1), Tally()),
    "mean": (Tally(add=1), Tally(other=1)),
    "prod": (Tally(mul=1), Tally()),
    "var": (Tally(mul=1, add=3), Tally(other=2)),
    "var_mean": (Tally(mul=1, add=3), Tally(other=2)),
    "std_mean": (Tally(mul=1, add=3), Tally(other=3)),
    "linalg_vector_norm": (Tally(mul=1, add=1), Tally(other=1)),
    "logsumexp": (Tally(add=2, other=2), Tally(other=1)),
    "_softmax": (Tally(add=2, other=3), Tally()),  # maximum, difference, exponential, sum, quotient
    "_safe_softmax": (Tally(add=2, other=3), Tally()),
    "_log_softmax": (Tally(add=3, other=2), Tally()),
    "_softmax_backward_data": (Tally(mul=2, add=2), Tally()),
    "upsample_bilinear2d_backward": (Tally(mul=4, add=4), Tally()),
    "glu_backward": (Tally(mul=4, add=1, other=1), Tally()),  # the first argument is the gradient of a σ(b)
    "_log_softmax_backward_data": (Tally(mul=1, add=2, other=1), Tally()),
    **dict.fromkeys(
        ["amax", "amin", "argmax", "argmin", "aminmax", "max", "min", "any", "all"], (Tally(other=1), Tally())
    ),
}
"""Cost of each element of the first argument, and of each element of the result."""


def rule(name: str) -> Rule | None:
    """The rule of an operator such as "addmm", or None. In-place operators have the rule of their out-of-place form."""
    if name in FREE:
        return lambda *_: Tally()
    for stem in (name, name.removesuffix("_")):
        if stem in _SPECIAL:
            return _SPECIAL[stem]
        if stem in _POINTWISE:
            return _pointwise(_POINTWISE[stem])
        if stem in _REDUCTIONS:
            return _reduction(*_REDUCTIONS[stem])
    return None


def _pointwise(each: Tally) -> Rule:
    def cost(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
        numbers = _first(result)
        return _in_reals(each, numbers) * numbers.numel()

    return cost


def _in_reals(each: Tally, numbers: Tensor) -> Tally:
    """Operations on real numbers that one operation on each of these numbers takes."""
    if not numbers.is_complex():
        return each
    return each.mul * Tally(mul=4, add=2) + Tally(add=2 * each.add, other=2 * each.other)  # (a + ib)(c + id)


def _reduction(each: Tally, result_each: Tally) -> Rule:
    def cost(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
        sums = _first(result)
        return _in_reals(each, args[0]) * args[0].numel() + _in_reals(result_each, sums) * sums.numel()

    return cost


def _first(result: Any) -> Tensor:
    return next(tensor for tensor in tree_iter(result) if isinstance(tensor, Tensor))


def _is_one(kwargs: dict[str, Any], *keys: str) -> bool:
    return all(kwargs.get(key, 1) == 1 for key in keys)


def _sum_of_two(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """a + αb, where α is a keyword or, for rsub and scalars, the third argument."""
    alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
    return _pointwise(Tally(mul=int(alpha != 1), add=1))(args, kwargs, result)


def _power(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    exponent = args[1]
    if isinstance(exponent, int | float) and exponent == int(exponent) and 2 <= exponent <= 4:
        return _pointwise(Tally(mul=int(exponent) - 1))(args, kwargs, result)
    return _pointwise(Tally(other=1))(args, kwargs, result)


def _clamp(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    bounds = [*args[1:3], kwargs.get("min"), kwargs.get("max")]
    return Tally(other=sum(bound is not None for bound in bounds)) * _first(result).numel()


def _written(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """index_put: (into, indices, source, accumulate)."""
    accumulates = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
    return Tally(add=args[2].numel() if accumulates else 0)


def _sorted(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """Comparisons of a merge sort."""
    axis = next((a for a in args[1:] if isinstance(a, int) and not isinstance(a, bool)), kwargs.get("dim", -1))
    return Tally(other=args[0].numel() * math.ceil(math.log2(max(2, args[0].shape[axis]))))


def _fft(real: bool) -> Rule:
    """Radix 2: n log2 n / 2 butterflies of a complex product and two sums; half of that for real numbers."""

    def cost(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
        whole = max(args[0].numel(), result.numel()) if real else args[0].numel()
        longest = args[0].shape if args[0].numel() >= result.numel() else result.shape
        halves = math.ceil(whole * sum(math.log2(longest[axis]) for axis in args[1]))
        return Tally(mul=halves, add=math.ceil(1.5 * halves)) * (1 if real else 2)

    return cost


def _layer_norm(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """Mean, differences, their squares' mean, ε, root; then · 1/σ, · weight, + bias. Also for group norm."""
    weights = [a for a in args[1:] if isinstance(a, Tensor) and a.is_floating_point()][:2]
    each = Tally(mul=2 + (len(weights) > 0), add=3 + (len(weights) > 1))
    return each * args[0].numel() + Tally(add=1, other=3) * result[1].numel()


def _batch_norm_inference(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """(x - mean) · (weight / σ) + bias."""
    x = args[0]
    return Tally(mul=1, add=2) * x.numel() + Tally(add=1, other=2) * x.shape[1]


def _batch_norm(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """(x, weight, bias, running mean, running variance, training, ...)."""
    training = next((a for a in args if isinstance(a, bool)), False)
    if not training:
        return _batch_norm_inference(args, kwargs, result)
    return Tally(mul=3, add=4) * args[0].numel() + Tally(mul=4, add=3, other=3) * args[0].shape[1]


def macs(times: int) -> Tally:
    """Multiplications with accumulation."""
    return Tally(mul=times, add=times)


def _product(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """a b."""
    return _in_reals(macs(1), result) * (result.numel() * args[0].shape[-1])


def _sum_and_product(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """addmm, baddbmm, addmv: β · bias + α · a b."""
    scaled = (not _is_one(kwargs, "alpha")) + (kwargs.get("beta", 1) not in (0, 1))
    total = _product(args[1:], {}, result) + _in_reals(Tally(mul=scaled), result) * result.numel()
    return total if kwargs.get("beta", 1) == 0 else total + _in_reals(Tally(add=1), result) * result.numel()


def _linear(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """linear, and the linear map of oneDNN with an activation in the same pass."""
    bias = args[2] if len(args) > 2 else kwargs.get("bias")
    total = _product(args, {}, result) + _in_reals(Tally(add=int(bias is not None)), result) * result.numel()
    activation = args[3] if len(args) > 3 else "none"
    return total if activation == "none" else total + _POINTWISE[activation] * result.numel()


def _triangular(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """Substitution, row after row; the diagonal divides unless it is 1."""
    rows = args[0].shape[-1]
    left = kwargs.get("left", True)
    columns = result.numel() // (result.shape[-2] if left else result.shape[-1])
    return macs(columns * rows * (rows - 1) // 2) + Tally(other=0 if kwargs.get("unitriangular") else result.numel())


def _convolution(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    x, weight, bias = args[:3]
    transposed = args[6] if len(args) > 6 else False
    total = macs((x if transposed else result).numel() * weight[0].numel())
    return total if bias is None else total + Tally(add=result.numel())


def _convolution_backward(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    gradient, x, weight = args[:3]
    needs_x, needs_weight, needs_bias = args[10]
    each = macs((x if args[7] else gradient).numel() * weight[0].numel())
    return (needs_x + needs_weight) * each + Tally(add=gradient.numel() if needs_bias else 0)


def _lstm(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """Four gates of x and h; c ← f c + i g, h ← o tanh(c). One layer in one direction."""
    x, weight_x, weight_h = args[:3]
    width = weight_h.shape[1]
    each = macs(weight_x.numel() + weight_h.numel()) + Tally(mul=3, add=1 + 8, other=5) * width
    return each * (x.numel() // x.shape[-1])


def _lstm_backward(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """Gradients of c, of the gates and of their inputs; then of x, h and both weights, and sums for both biases."""
    x, weight_x, weight_h = args[:3]
    width = weight_h.shape[1]
    each = 2 * macs(weight_x.numel() + weight_h.numel()) + Tally(mul=16, add=6 + 8, other=1) * width
    return each * (x.numel() // x.shape[-1])


def _mask(args: Sequence[Any], kwargs: dict[str, Any], keys: Sequence[str]) -> bool:
    return any(isinstance(kwargs.get(key), Tensor) for key in keys) or any(isinstance(a, Tensor) for a in args)


def _attention(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """softmax(q kᵀ · scale + bias) v."""
    q, k, v = args[:3]
    weights = q.shape[:-1].numel() * k.shape[-2]
    bias = _mask(args[3:], kwargs, ("attn_mask", "attn_bias"))
    each = macs(q.shape[-1] + v.shape[-1]) + Tally(mul=1, add=2 + bias, other=3)
    return each * weights


def _attention_backward(args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Tally:
    """Five products: w recomputed, ∂w, ∂v, ∂q and ∂k; w (∂w - Σ w ∂w) · scale, where Σ_j w_ij ∂w_ij = y_i · ∂y_i."""
    _, q, k, v = args[:4]
    weights = q.shape[:-1].numel() * k.shape[-2]
    bias = _mask((), kwargs, ("attn_mask", "attn_bias"))
    each = macs(3 * q.shape[-1] + 2 * v.shape[-1]) + Tally(mul=3, add=2 + bias, other=1)
    return each * weights + macs(v.shape[-1] * q.shape[:-1].numel())


_SPECIAL: dict[str, Rule] = {
    **dict.fromkeys(["add", "sub", "rsub"], _sum_of_two),
    **dict.fromkeys(["mm", "bmm", "mv", "dot", "vdot", "matmul"], _product),
    **dict.fromkeys(["addmm", "baddbmm", "addmv"], _sum_and_product),
    **dict.fromkeys(["linear", "_linear_pointwise"], _linear),
    **dict.fromkeys(  # (into, dim, index, source)
        ["index_add", "scatter_add"],
        lambda args, kwargs, _: Tally(mul=int(not _is_one(kwargs, "alpha")), add=1) * args[3].numel(),
    ),
    **dict.fromkeys(["_fft_r2c", "_fft_c2r"], _fft(real=True)),
    **dict.fromkeys(["sort", "argsort", "msort"], _sorted),
    **dict.fromkeys(["native_layer_norm", "native_group_norm"], _layer_norm),
    **dict.fromkeys(
        [
            "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
            "scaled_dot_product_attention",
        ],
        _attention,
    ),
    **dict.fromkeys(
        [
            "_scaled_dot_product_flash_attention_for_cpu_backward", "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
        ],
        _attention_backward,
    ),
    "mkldnn_rnn_layer": _lstm,
    "mkldnn_rnn_layer_backward": _lstm_backward,
    # |x|, which is free for real numbers: only the sign changes; x / |x|, which is one comparison for them.
    "abs": lambda args, *_: Tally(mul=2, add=1, other=1) * args[0].numel() if args[0].is_complex() else Tally(),
    "sgn": lambda args, *_: (Tally(2, 1, 3) if args[0].is_complex() else Tally(other=1)) * args[0].numel(),
    "pow": _power,
    "clamp": _clamp,
    "addcmul": lambda _, kwargs, result: Tally(mul=1 + (not _is_one(kwargs, "value")), add=1) * result.numel(),
    **dict.fromkeys(["index_put", "_index_put_impl"], _written),
    "embedding_dense_backward": lambda args, *_: Tally(add=args[0].numel()),
    # Comparisons of a heap of k entries.
    "topk": lambda args, *_: Tally(other=args[0].numel() * math.ceil(math.log2(args[1] + 1))),
    "_fft_c2c": _fft(real=False),
    # x̂ recomputed; γ∂; means of γ∂ and γ∂ x̂; (γ∂ - mean - x̂ mean) / σ; sums of ∂ x̂ and ∂ for weight and bias.
    "native_layer_norm_backward": lambda args, *_: Tally(6, 7) * args[0].numel() + Tally(other=2) * args[3].numel(),
    "native_batch_norm": _batch_norm,
    # As for LayerNorm, with means over the batch.
    "native_batch_norm_backward": lambda args, *_: Tally(6, 7) * args[0].numel() + Tally(other=2) * args[0].shape[1],
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm_inference,
    "linalg_solve_triangular": _triangular,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}  # fmt: skip
