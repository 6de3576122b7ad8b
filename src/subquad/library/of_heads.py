"""Mechanisms as functions of queries, keys and values that others have projected."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.attention.base import Affine, Attention
from subquad.backbones.pretrained import owners
from subquad.ops.affine import Activation
from subquad.specs import Masks, Tokens

_PLACES = {"query": 0, "key": 1, "value": 2}


def beside_maps(attention: Attention) -> tuple[str, ...]:
    """The parameters of an attention that belong to none of the maps of queries, keys, values and outputs."""
    taken = owners(attention.softmax_maps().values())
    return tuple(name for name, parameter in attention.named_parameters() if id(parameter) not in taken)


def reads_heads(attention: Attention) -> bool:
    """Whether an attention is a function of queries, keys, values and the padding mask, up to its output map."""
    maps = attention.softmax_maps()
    taken = owners(maps.values())
    others = (part for part in attention.modules() if isinstance(part, nn.Linear) and id(part.weight) not in taken)
    return {"query", "value", "out"} <= {*maps} and next(others, None) is None


def core_of(attention: Attention, like: nn.Linear | None = None) -> Attention:
    """A twin that reads [Q | K | V], of width 3 d, and returns [Y | 0 | 0] before the output map.

    The twin shares buffers and settings with `attention`, and has modules that select columns in place of its maps.
    What it computes from tokens X by X W_Q, X W_K and X W_V, in any order of products, it then computes from Q, K and
    V, because these are [Q | K | V] times the columns of an identity. Such columns have the type and device of the
    weight of `like`, or of the maps of `attention`, which are then kept.
    """
    maps, dim = attention.softmax_maps(), attention.site.dim
    parts: dict[int, nn.Module] = {}
    for linear in (part for part in attention.modules() if isinstance(part, nn.Linear)):
        rows = torch.arange(linear.out_features, device="cpu")[:, None].expand(-1, linear.in_features).contiguous()
        columns = torch.zeros(linear.out_features, dtype=torch.long, device="cpu")
        for name, (weight, _) in maps.items():
            if id(linear.weight) not in owners([(weight, None)]):
                continue
            if name == "out":
                parts[id(linear)] = _Filled(dim, 3 * dim, like or linear)
                continue
            offset = weight.storage_offset() - linear.weight.storage_offset()
            own = rows.as_strided(weight.shape, weight.stride(), offset).reshape(dim, -1)[:, 0]
            columns[own] = torch.arange(dim, device="cpu") + _PLACES[name] * dim
            parts[id(linear)] = _Selected(columns, dim, like or linear)
    return _with_parts(attention, parts)


def attend_heads(
    core: Attention, q: Float[Tensor, "b h n e"], k: Float[Tensor, "b h n e"], v: Float[Tensor, "b h n e"],
    masks: Masks,
) -> Tokens:  # fmt: skip
    """The output of a `core_of` an attention, in the mode of `core.training`."""
    x = torch.cat([heads.transpose(1, 2).flatten(2) for heads in (q, k, v)], -1)
    # A view is another object: kernels that serve x as its own context would multiply by the identity.
    y, _ = core(x, x.view_as(x), masks)
    return y[..., : q.shape[1] * q.shape[3]]


def _with_parts(module: Any, parts: dict[int, nn.Module]) -> Any:
    """A shallow copy with other modules at some places."""
    twin = copy.copy(module)
    twin._modules = {
        name: child if child is None else parts[id(child)] if id(child) in parts else _with_parts(child, parts)
        for name, child in module._modules.items()
    }
    return twin


class _Part(Affine):
    """Stands for an affine map that moves columns: no product, and a weight only where it is read."""

    def __init__(self, width: int, to: int, like: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = width, to
        self.like = (like,)  # a tuple hides it from the parts of this module

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        return self.like[0].weight.new_zeros(self.out_features)


class _Selected(_Part):
    """The map to the columns `columns`, of [Q | K | V]."""

    def __init__(self, columns: Int[Tensor, " e"], dim: int, like: nn.Linear) -> None:
        super().__init__(3 * dim, len(columns), like)
        first = int(columns[0])
        self.start = first if torch.equal(columns, torch.arange(first, first + len(columns), device="cpu")) else None
        self.columns = columns

    def forward(self, x: Float[Tensor, "*b d"], activation: Activation = "none") -> Float[Tensor, "*b e"]:
        """A copy, because callers write into what they have projected."""
        if self.start is None:
            y = x[..., self.columns.to(x.device)]
        else:
            y = x[..., self.start : self.start + self.out_features].clone()
        return y if activation == "none" else y.relu_() if activation == "relu" else y.sigmoid_()

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        like = self.like[0].weight
        return F.one_hot(self.columns, self.in_features).to(like.device, like.dtype)


class _Filled(_Part):
    """Stands for the output map: [Y | 0 | 0], as wide as the input of the attention."""

    def forward(self, x: Float[Tensor, "*b d"], activation: Activation = "none") -> Float[Tensor, "*b e"]:
        return F.pad(x, (0, self.out_features - self.in_features))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        like = self.like[0].weight
        return torch.eye(self.out_features, self.in_features, dtype=like.dtype, device=like.device)
