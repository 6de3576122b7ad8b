"""Weight transfer between image models that differ in attention, head or image size."""

import copy
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from subquad.attention.base import Attention, Maps
from subquad.utils.errors import UserError, first_line

log = logging.getLogger(__name__)

Weights = Mapping[str, Tensor]
_HEAD = ("head.weight", "head.bias")
_MAP = re.compile(r"(?:projections\.)?(query|key|value|out)\.(weight|bias)")


def maps_of(attention: Any) -> Maps:
    """Q, K, V and output weights of a timm attention, which stores Q, K, V fused, or Q separately and K, V fused."""
    joint = [attention.qkv] if hasattr(attention, "qkv") else [attention.q, attention.kv]
    weights = torch.cat([linear.weight for linear in joint]).chunk(3)
    biases = torch.cat([_bias(linear) for linear in joint]).chunk(3)
    named = zip(("query", "key", "value"), zip(weights, biases, strict=True), strict=True)
    return {**dict(named), "out": (attention.proj.weight, _bias(attention.proj))}


def _bias(linear: nn.Linear) -> Tensor:
    return linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias


@torch.no_grad()
def transfer_weights(maps: Maps, attention: Attention) -> tuple[list[str], list[str]]:
    """Copies the maps of a softmax attention to the mechanism's own maps; its other tensors stay as they are.

    Returns the names of the copied maps, and of the parameters and buffers that stayed.
    """
    taken, filled = [], set[int]()
    for name, (weight, bias) in attention.softmax_maps().items():
        if name not in maps or maps[name][0].numel() != weight.numel():
            continue
        source, source_bias = maps[name]
        weight.copy_(source.reshape(weight.shape))
        if bias is not None:
            bias.copy_(torch.zeros_like(bias) if source_bias is None else source_bias.reshape(bias.shape))
        taken.append(name)
        filled |= owners([(weight, bias)])
    rest = [
        name for name, tensor in [*attention.named_parameters(), *attention.named_buffers()] if id(tensor) not in filled
    ]
    return taken, rest


def owners(maps: Iterable[tuple[Tensor, Tensor | None]]) -> set[int]:
    """The ids of the parameters that these maps are, or are views of."""
    tensors = [tensor for pair in maps for tensor in pair if tensor is not None]
    return {id(tensor if tensor._base is None else tensor._base) for tensor in tensors}


class TransferLog:
    """Collects which maps each attention received, and logs one line for each distinct result."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()

    def note(self, attention: Attention, taken: list[str], rest: list[str]) -> None:
        """Adds one attention."""
        kept = f"took {', '.join(taken)}" if taken else "took nothing"
        self.lines[f"{type(attention).__name__}: {kept}" + (f"; new: {', '.join(rest)}" if rest else "")] += 1

    def log(self) -> None:
        """Logs the collected lines."""
        for line, times in self.lines.items():
            log.info(f"{times} x {line}.")


def fitting(model: nn.Module, weights: Weights, source: str) -> dict[str, Tensor]:
    """A state dict for `model`, a timm model with plain attention, from the published weights of the same architecture.

    Positions are resampled to the grid of the model and the first convolution is adapted to its colours. If the
    classes differ, the model keeps its own head. The modules that reduce keys in PVTv2 and Twins are left out, as in
    EcoFormer's code. Raises UserError if the rest does not fit.
    """
    fitted = dict(_renamed(model, weights))
    own = model.state_dict()
    for name in ("patch_embed.proj.weight", "patch_embeds.0.proj.weight"):
        if name in own and name in fitted and own[name].shape[1] == 1 and fitted[name].shape[1] == 3:
            fitted[name] = fitted[name].sum(1, keepdim=True)  # as timm adapts colour filters to grey images
    if "cls_token" in fitted and "cls_token" not in own:
        raise UserError(f"{source} has a class token and this model has none; set backbone.class_token=true.")
    fitted = {
        name: tensor for name, tensor in fitted.items() if name in own or not re.search(r"\.attn\.(sr|norm)\.", name)
    }
    return _complete(own, resampled(model, fitted), source)


def _renamed(model: nn.Module, weights: Weights) -> Weights:
    from timm.models import pvt_v2, vision_transformer

    if isinstance(model, vision_transformer.VisionTransformer):
        return weights
    if isinstance(model, pvt_v2.PyramidVisionTransformerV2):
        named: Weights = pvt_v2.checkpoint_filter_fn(dict(weights), model)
        return _split_joint(named)
    return weights


def _split_joint(weights: Weights) -> Weights:
    """EcoFormer's full attention stores Q, K and V fused; timm's PVTv2 stores Q separately."""
    split: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        place, joint, kind = name.partition(".attn.qkv.")
        if joint:
            query, key, value = tensor.chunk(3)
            split |= {f"{place}.attn.q.{kind}": query, f"{place}.attn.kv.{kind}": torch.cat([key, value])}
        else:
            split[name] = tensor
    return split


def _complete(own: Weights, given: Weights, source: str, prefix: str = "") -> dict[str, Tensor]:
    """A complete state dict: `given`, and the model's own head if the classes differ."""
    merged = dict(given)
    for name in (prefix + part for part in _HEAD):
        if name in own and (name not in merged or merged[name].shape != own[name].shape):
            merged[name] = own[name]
            if name.endswith("weight"):
                log.info(f"The head is new: {len(own[name])} classes.")
    for name in [*own, *merged]:
        here, there = (list(side[name].shape) if name in side else "nothing" for side in (own, merged))
        if here != there:
            raise UserError(
                f"The weights of {source} do not fit this model ({name.removeprefix(prefix)} is {here} here and "
                f"{there} there); choose the backbone and the sizes that they were trained with."
            )
    return merged


def resampled(model: nn.Module, weights: Weights, prefix: str = "") -> dict[str, Tensor]:
    """The weights, with learned positions resampled to the grid of `model` (bicubic, as timm)."""
    adapted, name = dict(weights), f"{prefix}pos_embed"
    own = getattr(model, "pos_embed", None)
    if name not in adapted or not isinstance(own, Tensor) or adapted[name].shape == own.shape:
        return adapted
    from timm.layers import resample_abs_pos_embed

    positions, extra = adapted[name], int(getattr(model, "num_prefix_tokens", 0))
    grid: Any = getattr(model, "patch_embed", None)
    side = round((positions.shape[1] - extra) ** 0.5)
    if positions.ndim == 3 and side**2 == positions.shape[1] - extra and positions.shape[2] == own.shape[2]:
        adapted[name] = resample_abs_pos_embed(positions, new_size=list(grid.grid_size), num_prefix_tokens=extra)
        log.info(f"Positions of {side} x {side} patches are resampled to {grid.grid_size[0]} x {grid.grid_size[1]}.")
    return adapted


def adapt_state_dict(network: nn.Module, weights: Weights) -> dict[str, Tensor]:
    """A complete state dict for a network with a timm `model`, from that of a run with other attentions.

    Attentions of the same kind and sizes are copied completely; of others only the maps that both have.
    """
    twin, transfers = copy.deepcopy(network), TransferLog()
    result = resampled(twin.get_submodule("model"), weights, "model.")
    for name, attention in twin.named_modules():
        if not isinstance(attention, Attention):
            continue
        place = f"{name}."
        state = {key.removeprefix(place): result.pop(key) for key in [*result] if key.startswith(place)}
        own = attention.state_dict()
        if {key: t.shape for key, t in state.items()} != {key: t.shape for key, t in own.items()}:
            transfers.note(attention, *transfer_weights(_maps_in(state), attention))
            state = attention.state_dict()
        result |= {place + key: tensor for key, tensor in state.items()}
    transfers.log()
    return _complete(network.state_dict(), result, "ckpt_path", "model.")


def _maps_in(state: Weights) -> Maps:
    """The query, key, value and out maps in the state dict of an attention of this package."""
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        if match := _MAP.fullmatch(name):
            tensors.setdefault(match[1], {})[match[2]] = tensor
    return {name: (parts["weight"], parts.get("bias")) for name, parts in tensors.items() if "weight" in parts}


def published(source: str, model: str | None) -> Weights:
    """Weights from a file (.pth, .pt, .bin, .safetensors), or for "hub" those that timm publishes for `model`.

    "hub:<name>" selects another timm model. Weights of timm are read from the cache of Hugging Face, without a network.
    Raises UserError if they are not there or cannot be read.
    """
    if _on_hub(source):
        return _from_hub(_hub_name(source, model))
    from timm.models import load_state_dict

    try:
        weights: Weights = load_state_dict(source, weights_only=True)
    except FileNotFoundError:
        raise UserError(f"There is no file {source}; set backbone.pretrained to one, to hub, or to null.") from None
    except Exception as error:  # readers raise many kinds of errors for other files
        reason = first_line(error)
        raise UserError(f"{source} holds no weights ({reason}); set backbone.pretrained to a file that does.") from None
    if any(name.startswith("network.") for name in weights):
        raise UserError(f"{source} is a checkpoint of a run of Subquad; give it as ckpt_path, not backbone.pretrained.")
    if not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise UserError(f"{source} does not hold weights alone; set backbone.pretrained to a state dict.")
    return weights


def fetch(source: str, model: str | None) -> None:
    """Downloads the weights that `published` reads; nothing for a file. Raises UserError if they cannot be fetched."""
    if _on_hub(source):
        name = _hub_name(source, model)
        try:
            _hub_file(name, download=True)
        except (OSError, RuntimeError, ValueError) as error:  # no network, no such weights
            raise UserError(
                f"The weights of {name} cannot be fetched ({first_line(error)}); get {_hub_place(name)[1]} of "
                f"https://huggingface.co/{_hub_place(name)[0]} by other means and set backbone.pretrained to that file."
            ) from None


def _from_hub(name: str) -> Weights:
    import timm

    try:
        file = {"file": _hub_file(name, download=False), "custom_load": False}
    except (OSError, ValueError):
        raise UserError(
            f"The weights of {name} are not on this machine; where there is a network, run `python scripts/prepare.py` "
            "with the task and the overrides of this run."
        ) from None
    weights: Weights = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=file).state_dict()
    return weights


def _on_hub(source: str) -> bool:
    return source == "hub" or source.startswith("hub:")


def _hub_name(source: str, model: str | None) -> str:
    """The name of a model in timm, which may include its weights, as in pvt_v2_b0.in1k."""
    import timm

    name = source.removeprefix("hub").removeprefix(":") or model
    if name is None:
        raise UserError("This backbone has no name at timm; write which weights, as hub:deit_tiny_patch16_224.")
    if not timm.is_model(name.partition(".")[0]):
        raise UserError(f"timm has no model {name}; set backbone.pretrained to hub:<a name of timm.list_pretrained()>.")
    return name


def _hub_file(name: str, download: bool) -> str:
    """The path of a model's weights in the cache of Hugging Face."""
    import huggingface_hub

    place, file = _hub_place(name)
    return str(huggingface_hub.hf_hub_download(place, file, local_files_only=not download))


def _hub_place(name: str) -> tuple[str, str]:
    """The repository at Hugging Face, and the file in it, of a model's weights."""
    import timm

    config = timm.get_pretrained_cfg(name)
    place = getattr(config, "hf_hub_id", None) or f"timm/{name}"
    return place, getattr(config, "hf_hub_filename", None) or "model.safetensors"
