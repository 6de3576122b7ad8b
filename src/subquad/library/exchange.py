"""Replaces the attentions of models of other libraries."""

import fnmatch
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Any, Final
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from subquad.attention.base import Attention, StatelessAttention
from subquad.backbones.carrying import CarrySlot
from subquad.backbones.pretrained import transfer_weights
from subquad.library.building import AttentionChoice, attention_factory
from subquad.library.host import Host
from subquad.library.hosts import hosts_in
from subquad.library.rotary import turns
from subquad.specs import SITE_SETTINGS, UNKNOWN, Pattern, Site
from subquad.utils.errors import UserError

KEY: Final = "subquad"
"""The entry of a model's `config.json` that lists its swaps, oldest first."""

_noted: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
"""The models whose swaps a configuration lists, and that configuration."""


@dataclass(frozen=True)
class Swapped:
    """An attention that `swap` replaced.

    `moved` are the maps (query, key, value, out) that the new attention took over, `new` its parameters and buffers
    that have initial values, `lost` what of the old one has no counterpart: maps, parameters, windows, positions.

    Examples:
        >>> from torch import nn
        >>> from subquad import swap
        >>> layer = nn.TransformerEncoderLayer(d_model=64, nhead=4, batch_first=True)
        >>> [swapped] = swap(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), "luna")
        >>> swapped.name, swapped.moved
        ('layers.0.self_attn', ('query', 'key', 'value', 'out'))
    """

    name: str
    before: nn.Module
    after: Attention
    moved: tuple[str, ...]
    new: tuple[str, ...]
    lost: tuple[str, ...]

    def __repr__(self) -> str:
        parts = [f"{self.name}: {type(self.before).__name__} -> {type(self.after).__name__}"]
        for what, names in (("moved", self.moved), ("new", self.new), ("lost", self.lost)):
            parts += [f"{what} {', '.join(names)}"] if names else []
        return "; ".join(parts)


def swap(
    model: nn.Module, attention: AttentionChoice, where: str | Sequence[int] | None = None, keep_weights: bool = True,
    max_len: int | None = None, image_size: int | None = None, **settings: Any,
) -> list[Swapped]:  # fmt: skip
    """Replaces self-attentions of a model in place, and returns what was replaced.

    Supports `nn.TransformerEncoder`, and encoders of transformers and vision transformers of timm whose attentions have
    projections of known names; docs/library.md lists those that are tested. The new attentions respect the model's
    padding masks. Layers that share a latent (DBA, Luna) pass it on among the replaced layers of one width. Reduced
    keys (PVTv2, Twins) and windows (Twins, ModernBERT) become attention to all tokens, relative biases (BEiT, MPNet)
    are lost, and rotary positions (ModernBERT, EVA) reach attentions that compute from queries and keys. Where an
    attention was frozen, the weights that move stay frozen and new ones train. A swapped model can be swapped again.
    `save_pretrained` of transformers stores the swap with the weights, for `load_swapped`.

    Args:
        model: the model; it is changed.
        attention: a choice of configs/attention, a class, or a factory.
        where: which attentions: None is all of them; a pattern of their names, such as "encoder.layer.[0-3].*"; or
            their numbers from 0.
        keep_weights: start from the weights of the maps that old and new attention both have.
        max_len: the longest input in tokens, for attentions that need it (Linformer, Synthesizer) in models that do not
            say.
        image_size: pixels per side of the images, if they are not those that a timm model was made for. Attentions
            that were swapped before keep their longest input unless `max_len` is given.
        settings: settings of the attention.

    Returns:
        One `Swapped` for each attention.

    Raises:
        UserError: for other models, and attentions that cannot stand there.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from subquad import swap
        >>> layer = nn.TransformerEncoderLayer(d_model=64, nhead=4, batch_first=True)
        >>> encoder = nn.TransformerEncoder(layer, num_layers=3)
        >>> swapped = swap(encoder, "dba", where=[1, 2], d_p=8)
        >>> encoder(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])
    """
    if sizes := {*SITE_SETTINGS} & settings.keys():
        raise UserError(f"{', '.join(sorted(sizes))} cannot be set here; the model has its own.")
    if not (isinstance(attention, str) or callable(attention)):
        raise UserError(f"{attention!r} is no attention; pass the name of a choice, a class or a factory.")
    found = hosts_in(model, image_size)
    factory, hosts = attention_factory(attention), _chosen(found, where)
    counts, seen, built = Counter(host.stage for host in hosts), Counter[int](), []
    for host in hosts:
        longest = max_len or host.max_len or UNKNOWN
        site = Site(
            pattern=Pattern.SELF, dim=host.dim, heads=host.heads, query_len=longest, context_len=longest,
            layer=seen[host.stage], layers=counts[host.stage], stage=host.stage, dropout=host.dropout,
            grid=host.grid if host.grid and host.grid[0] * host.grid[1] == longest else None,
        )  # fmt: skip
        seen[host.stage] += 1
        try:
            built.append(factory(site=site, **settings))
        except TypeError as error:
            raise UserError(f"The settings of {attention} do not fit ({error}); see docs/attentions.md.") from None
    # Nothing is replaced before everything is built, so that an error leaves the model as it was.
    slots, default = {stage: CarrySlot() for stage in counts}, next(model.parameters())  # FNet has none of its own
    _note(model, attention, found, [found.index(host) for host in hosts], max_len, settings)
    return [
        _replace(host, new, slots[host.stage], keep_weights, default) for host, new in zip(hosts, built, strict=True)
    ]


def _note(
    model: nn.Module, attention: AttentionChoice, hosts: Sequence[Host], where: Sequence[int], max_len: int | None,
    settings: dict[str, Any],
) -> None:  # fmt: skip
    """Adds a swap to the configuration of a model of transformers, so that `save_pretrained` stores it.

    Raises UserError if another model has the same configuration, which cannot list the swaps of two.
    """
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_json_string"):
        return
    for other, listed in _noted.items():
        if listed is config and other not in {*model.modules()} and model not in {*other.modules()}:
            raise UserError(
                f"Another {type(other).__name__}, which was swapped, shares its configuration with this model, and "
                "save_pretrained stores swaps there; build each model from its own copy (copy.deepcopy(config))."
            )
    _noted[model] = config
    if not isinstance(attention, str):
        made: Any = attention if isinstance(attention, partial) else partial(attention)
        attention, settings = f"{made.func.__module__}:{made.func.__qualname__}", made.keywords | settings
    entry = {"attention": attention, "where": where, "max_len": max_len, "settings": settings}
    if getattr(config, "is_encoder_decoder", False):  # the encoder, whose configuration is that of the whole
        entry["part"] = type(model).__name__
    # A model without any of the package's has those of one that is gone, or was loaded without them.
    before = getattr(config, KEY, ()) if any(isinstance(host.module, Attention) for host in hosts) else ()
    setattr(config, KEY, [*before, entry])


def _chosen(hosts: list[Host], where: str | Sequence[int] | None) -> list[Host]:
    names = [host.name for host in hosts]
    if where is None:
        return hosts
    if isinstance(where, str):
        chosen = [host for host in hosts if fnmatch.fnmatchcase(host.name, where)]
    else:
        try:
            numbers = sorted({index(number) for number in where})
        except TypeError:
            raise UserError(
                f"where={where!r} is no pattern of names and no list of numbers; write where=[0, 1]."
            ) from None
        chosen = [hosts[number] for number in numbers if 0 <= number < len(hosts)]
    if not chosen or (not isinstance(where, str) and len(chosen) < len(set(where))):
        raise UserError(
            f"where={where!r} names no attention of this model; it has 0 to {len(names) - 1}: {', '.join(names)}."
        )
    for host in chosen:
        stack = [other for other in hosts if other.stack is host.stack is not None]
        if not isinstance(host.module, StatelessAttention) and any(other not in chosen for other in stack):
            raise UserError(
                f"{', '.join(other.name for other in stack)} form a stack of {type(host.module).__name__}, whose "
                "layers may share parameters; choose all of them or none."
            )
    return chosen


def _replace(host: Host, attention: Attention, slot: CarrySlot, keep_weights: bool, default: Tensor) -> Swapped:
    like = next(host.module.parameters(), default)
    moved, new = transfer_weights(host.maps if keep_weights else {}, attention)
    if not any(weight.requires_grad for weight in host.module.parameters()):
        for name, weight in attention.named_parameters():
            weight.requires_grad_(name in new)
    host.install(attention.to(like.device, like.dtype).train(host.module.training), slot)
    lost = [*host.lost, *(name for name in host.maps if name not in attention.softmax_maps())]
    lost += ["rotary positions"] if host.rotary and not turns(attention) else []
    return Swapped(host.name, host.module, attention, tuple(moved), tuple(new), tuple(lost))
