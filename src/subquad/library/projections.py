"""Finds the parts of an attention of another library by their names."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from subquad.attention.base import Maps
from subquad.utils.errors import UserError

ROLES: Final = ("query", "key", "value")
SEPARATE: Final = (ROLES, ("q_proj", "k_proj", "v_proj"), ("q_lin", "k_lin", "v_lin"), ("q", "k", "v"))
JOINT: Final = ("qkv", "Wqkv")
"""Queries, keys and values, each a third of the output."""
HALF_JOINT: Final = ("q", "kv")
OUT: Final = ("o_proj", "out_proj", "out_lin", "o", "Wo", "proj", "dense")
HEADS: Final = ("num_attention_heads", "num_heads", "n_heads")
HEAD_WIDTH: Final = ("head_dim", "attention_head_size")
SCALE: Final = ("scaling", "scale")
DROPOUT: Final = ("attn_drop", "attention_dropout", "dropout", "dropout_prob")
"""Of the attention weights."""
DROPOUT_AFTER: Final = ("out_drop", "proj_drop", "output_dropout")
"""Of the output."""
OTHERWISE: Final = ("attn_logit_softcapping", "apply_rotary_embeddings")
"""Attributes, neither modules nor parameters, by which an attention computes other logits (VideoPrism, V-JEPA 2)."""


@dataclass(frozen=True)
class Quirk:
    """What an attention has beside its projections.

    lost: parts without a counterpart; around: such parts of the layer around it, which are taken out. ignored:
    arguments of its call that carry such parts. norm: a part that normalises the sum of input and output.
    """

    lost: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    norm: str | None = None


QUIRKS: Final = {
    "modeling_albert.AlbertAttention": Quirk(norm="LayerNorm"),
    "modeling_autoformer.AutoformerAttention": Quirk(lost=("autocorrelation_factor",)),
    "modeling_beit.BeitAttention": Quirk(around=("relative_position_bias",)),
    "modeling_beit.BeitSelfAttention": Quirk(lost=("relative_position_bias",)),  # of older transformers
    "modeling_beit.BeitSdpaSelfAttention": Quirk(lost=("relative_position_bias",)),
    "modeling_informer.InformerProbSparseAttention": Quirk(lost=("factor",)),
    "modeling_mpnet.MPNetSelfAttention": Quirk(ignored=("position_bias",)),
    "modeling_yoso.YosoSelfAttention": Quirk(lost=("hash_code_len",)),
    "beit.Attention": Quirk(lost=("relative_position_bias_table",)),
    "pvt_v2.Attention": Quirk(lost=("sr", "norm", "pool", "act")),
    "twins.GlobalSubSampleAttn": Quirk(lost=("sr", "norm")),
}
"""By the last part of its module and its class; others are found by their names alone."""


@dataclass(frozen=True)
class Projected:
    """An attention of another library. `out` is the module of the output map."""

    maps: Maps
    out: nn.Linear
    dim: int
    heads: int
    dropout: float
    after: nn.Module
    quirk: Quirk


def projected(name: str, own: Any, outside: Any = None) -> Projected | None:
    """The parts of the module `own` called `name`, or None if it has no queries, keys and values.

    outside: the output map, if it is not in `own`. Raises UserError that says what was not understood.
    """
    found = _inputs(own)
    if found is None:
        if odd := _odd_inputs(own):
            raise UserError(f"{name}.{odd} is a {type(getattr(own, odd)).__name__}, and was expected to be nn.Linear.")
        return None
    names, maps = found
    quirk = QUIRKS.get(f"{type(own).__module__.rpartition('.')[2]}.{type(own).__name__}", Quirk())
    own_out = next((part for part in OUT if isinstance(getattr(own, part, None), nn.Linear)), None)
    out = outside if own_out is None else getattr(own, own_out)
    if not isinstance(out, nn.Linear):
        raise UserError(f"{name} has {', '.join(names)}, and no output map is known in it ({', '.join(OUT)}).")
    known = {*names, own_out, *quirk.lost, quirk.norm, *DROPOUT, *DROPOUT_AFTER, "q_bias", "k_bias", "v_bias"}
    if others := sorted(_others(own, known)):
        raise UserError(f"{name} has {', '.join(others)}, which no attention here has.")
    maps = maps | {"out": (out.weight, out.bias)}
    dim = out.out_features
    for role, (weight, _) in maps.items():
        if weight.shape != (dim, dim):
            raise UserError(
                f"The {role} map of {name} is {weight.shape[1]} -> {weight.shape[0]} channels; attentions here have "
                f"maps of {dim} -> {dim} and as many heads of keys as of queries."
            )
    heads, scale = _heads(name, own, dim), _number(own, SCALE)
    if scale is not None and abs(scale * (dim / heads) ** 0.5 - 1) > 1e-4:
        raise UserError(f"{name} has the scale {scale:.3g}, and attentions here have 1 / √{dim // heads}.")
    after = next((getattr(own, part) for part in DROPOUT_AFTER if hasattr(own, part)), None)
    return Projected(maps, out, dim, heads, _number(own, DROPOUT) or 0.0, after or nn.Identity(), quirk)


def _inputs(own: Any) -> tuple[tuple[str, ...], dict[str, tuple[Tensor, Tensor | None]]] | None:
    """The names of the maps of queries, keys and values, and the maps by their roles."""
    for names in (*SEPARATE, HALF_JOINT, *((joint,) for joint in JOINT)):
        parts: list[Any] = [getattr(own, name, None) for name in names]
        if not all(isinstance(part, nn.Linear) for part in parts):
            continue
        weights, biases = [part.weight for part in parts], [part.bias for part in parts]
        if len(parts) < len(ROLES):
            weights = [*torch.cat(weights).chunk(3)]
            biases = [None] * 3 if None in biases else [*torch.cat(biases).chunk(3)]
        apart = [getattr(own, f"{letter}_bias", None) for letter in "qkv"]
        biases = [bias if other is None else other for bias, other in zip(biases, apart, strict=True)]
        return names, dict(zip(ROLES, zip(weights, biases, strict=True), strict=True))
    return None


def _odd_inputs(own: Any) -> str | None:
    """The name of a map of queries that is no linear map, beside such of keys and values."""
    for names in (*SEPARATE, HALF_JOINT):
        if all(isinstance(getattr(own, name, None), nn.Module) for name in names):
            return next(name for name in names if not isinstance(getattr(own, name), nn.Linear))
    return None


def _others(own: nn.Module, known: set[str | None]) -> Iterator[str]:
    """Parts that may change the output, but modules without parameters that change nothing in evaluation."""
    for name, part in own.named_children():
        if name not in known and not isinstance(part, nn.Identity):
            yield name
    yield from (name for name, _ in own.named_parameters(recurse=False) if name not in known)
    yield from (name for name in OTHERWISE if getattr(own, name, None) is not None)


def _heads(name: str, own: Any, dim: int) -> int:
    for attribute in HEADS:
        if isinstance(heads := getattr(own, attribute, None), int):
            return heads
    for attribute in HEAD_WIDTH:
        if isinstance(width := getattr(own, attribute, None), int):
            return dim // width
    raise UserError(f"{name} does not say how many heads it has, as {', '.join(HEADS)} or {', '.join(HEAD_WIDTH)}.")


def _number(own: Any, names: tuple[str, ...]) -> float | None:
    """The first of these attributes that is a number, or the rate of a dropout."""
    for name in names:
        value = getattr(own, name, None)
        if isinstance(value := getattr(value, "p", value), int | float) and not isinstance(value, bool):
            return float(value)
    return None
