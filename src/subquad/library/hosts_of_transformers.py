"""Self-attentions in models of transformers."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from subquad.attention.base import Attention
from subquad.backbones.carrying import Carrying, CarrySlot
from subquad.library.host import Host
from subquad.library.padding import real_tokens, real_tokens_of_window
from subquad.library.projections import Projected, projected
from subquad.library.rotary import Rotating
from subquad.specs import Masks
from subquad.utils.errors import UserError

ROTATED = "position_embeddings"
"""The argument with cosines and sines of rotary positions."""
UNREAD = {"position_ids", "cache_position"}
"""Arguments that say what other arguments say too."""


class InTransformers(Rotating):
    """Stands for an attention of transformers, which returns its output and its weights."""

    inner = "swapped"  # `attention.attention.query` is an old name in ViT, which transformers renames on loading

    def __init__(self, attention: Attention, slot: CarrySlot, own: Any, parts: Projected) -> None:
        nn.Module.__init__(self)
        self.arguments = tuple(inspect.signature(own.forward).parameters)
        self.outputs = returned_by(own.forward)
        # The module that has the function which rotates queries and keys.
        self.rotating = type(own).__module__ if is_rotary(own) else None
        self.rotary = self.rotating is not None
        self.windowed, self.ignored = has_window(own), parts.quirk.ignored
        self.config = getattr(own, "config", None)
        self.dropout, self.norm = parts.after, parts.quirk.norm
        if self.norm is not None:
            setattr(self, self.norm, getattr(own, self.norm))
        self.put(attention, slot)

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        """Names of parameters that are others under a second name; `save_pretrained` writes each parameter once."""
        first = {id(parameter): name for name, parameter in self.named_parameters()}
        named = self.named_parameters(remove_duplicate=False)
        return {name: first[id(parameter)] for name, parameter in named if first[id(parameter)] != name}

    def forward(self, *args: Any, **given: Any) -> tuple[Tensor | None, ...]:
        given |= dict(zip(self.arguments, args, strict=False))
        x, mask = given.pop(self.arguments[0]), given.pop("attention_mask", None)
        rotating = importlib.import_module(str(self.rotating)) if self.rotary else None
        rotate = partial(_rotated, rotating, *given.pop(ROTATED)) if self.rotary else None
        if given.get("is_causal"):
            raise UserError("This attention is causal, and no attention here is; choose others, as where=[...].")
        for name in self.arguments:  # others pass through the attentions of transformers too
            if not _is_plain(given.get(name)) and name not in (*UNREAD, *self.ignored):
                raise UserError(f"The model passes {name} to its attentions, which no attention here reads.")
        if x.dim() != 3:
            raise UserError(
                f"The model passes {list(x.shape)} to its attentions, and attentions here take [batch, tokens, width]."
            )
        real = (real_tokens_of_window if self.windowed else real_tokens)(mask)
        y = self.dropout(self.attend_rotated(x, Masks(real, real), rotate))
        if self.slot.passes and self.attention.training and (share := _dropped(self.config)):
            raise UserError(
                f"The model leaves out layers at random in training (layerdrop={share:g}), and "
                f"{type(self.attention).__name__} passes a tensor from layer to layer; set layerdrop to 0 in its "
                "configuration."
            )
        y = y if self.norm is None else getattr(self, self.norm)(x + y)
        return y, *(None,) * (self.outputs - 1)


def _dropped(config: Any) -> float:
    """The share of the layers of an encoder that are left out in training."""
    return max(getattr(config, "layerdrop", None) or 0.0, getattr(config, "encoder_layerdrop", None) or 0.0)


def _rotated(module: Any, cos: Tensor, sin: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    rotated: tuple[Tensor, Tensor] = module.apply_rotary_pos_emb(q, k, cos, sin)
    return rotated


def _is_plain(value: Any) -> bool:
    """Whether an argument holds no tensor."""
    values = value if isinstance(value, tuple) else (value,)
    return all(isinstance(one, bool | int | float | str | None) for one in values)


def returned_by(forward: Callable[..., Any]) -> int:
    """How many values an attention returns, two at least: by its source, since annotations name more (Whisper)."""
    try:
        source = ast.parse(textwrap.dedent(inspect.getsource(forward)))
    except OSError:  # typed into an interpreter
        source = ast.parse("")
    returned = [node.value for node in ast.walk(source) if isinstance(node, ast.Return)]
    lengths = [len(value.elts) for value in returned if isinstance(value, ast.Tuple)]
    annotated = getattr(inspect.signature(forward).return_annotation, "__args__", ())
    return max(2, *(lengths or [len(annotated)]))


def is_rotary(own: Any) -> bool:
    """Whether the model passes rotary positions to this attention."""
    module = importlib.import_module(type(own).__module__)
    return ROTATED in inspect.signature(own.forward).parameters and hasattr(module, "apply_rotary_pos_emb")


def has_window(own: Any) -> bool:
    """Whether queries of an attention see their neighbours only."""
    older = getattr(own, "local_attention", None)  # ModernBERT's, in transformers 5.0; -1 is no limit
    return bool(getattr(own, "sliding_window", None)) or (isinstance(older, tuple) and max(older) > 0)


def hosts_of_transformers(model: nn.Module) -> Iterator[Host]:
    """The self-attentions of models with a configuration of transformers. Raises UserError for decoders."""
    for name, own, owner, stage in _parts_of_models(model):
        place, _, attribute = name.rpartition(".")
        parent: Any = model.get_submodule(place)
        outside = (
            getattr(getattr(parent, "output", None), "dense", None) if "Attention" in type(parent).__name__ else None
        )
        parts = projected(name, own, outside)
        if parts is None:
            continue
        if getattr(own, "is_causal", False) or getattr(own, "is_decoder", False):
            raise UserError(
                f"{name} is a part of a decoder, and no attention here is causal; swap the encoder alone, as "
                "swap(model.get_encoder(), ...)."
            )

        def install(
            attention: Attention, slot: CarrySlot, parent: Any = parent, attribute: str = attribute, own: Any = own,
            parts: Projected = parts, outside: Any = outside,
        ) -> None:  # fmt: skip
            setattr(parent, attribute, InTransformers(attention, slot, own, parts))
            for part in parts.quirk.around:
                setattr(parent, part, None)
            if parts.out is outside:
                parent.output.dense = nn.Identity()  # the attention has an output map of its own

        lost = [part for part in parts.quirk.around if getattr(parent, part, None) is not None]
        lost += [part for part in parts.quirk.lost if getattr(own, part, None) is not None]
        window = ["sliding_window"] if has_window(own) else []
        yield Host(
            name=name, module=own, dim=parts.dim, heads=parts.heads, max_len=_longest(owner), dropout=parts.dropout,
            install=install, maps=parts.maps, lost=(*lost, *parts.quirk.ignored, *window), stage=stage,
            rotary=is_rotary(own),
        )  # fmt: skip


def _parts_of_models(model: nn.Module) -> Iterator[tuple[str, nn.Module, Any, int]]:
    """Modules that are not swapped yet, each with the model around it and the number of this model.

    Parts with a configuration of their own, such as the towers of CLIP, are models.
    """
    models: list[tuple[str, Any]] = []
    swapped: list[str] = []
    for name, own in model.named_modules():
        around = [number for number, (place, _) in enumerate(models) if name.startswith(place)]
        config = getattr(own, "config", None)
        if isinstance(own, Carrying | nn.MultiheadAttention):
            swapped.append(f"{name}.")
        elif hasattr(config, "to_json_string") and (not around or config is not models[around[-1]][1].config):
            models.append((f"{name}." if name else "", own))
            _check_encoder(own)
        elif around and not name.startswith(tuple(swapped)):
            yield name, own, models[around[-1]][1], around[-1]


def _check_encoder(model: Any) -> None:
    config = model.config
    if "Swin" in type(model).__name__:
        raise UserError(
            f"The windows of {type(model).__name__} are shifted and masked, and no attention here has such."
        )
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise UserError(f"This {type(model).__name__} is a causal decoder, and no attention here is causal.")
    if getattr(config, "position_embedding_type", "absolute") not in ("absolute", None):
        raise UserError("Relative positions are part of this model's attention, and no attention here has them.")


def _longest(model: Any) -> int | None:
    """Tokens of the longest input of a model, None if it has no limit."""
    for part in model.modules():
        learned = getattr(part, "position_embeddings", None)
        learned = getattr(part, "position_embedding", None) if learned is None else learned
        if isinstance(learned, nn.Embedding):  # RoBERTa's positions begin after that of padding
            return learned.num_embeddings - (0 if learned.padding_idx is None else learned.padding_idx + 1)
        if isinstance(learned, Tensor):
            return learned.shape[-2]
    config = model.config
    size, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    if size is None or patch is None:
        return getattr(config, "max_position_embeddings", None)
    (height, width), (rows, columns) = ((side, side) if isinstance(side, int) else side for side in (size, patch))
    class_token = any(name.endswith("cls_token") for name, _ in model.named_parameters())
    return (height // rows) * (width // columns) + class_token
