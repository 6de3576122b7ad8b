"""Self-attentions in models of timm, transformers and torch: where they are, their sizes and weights."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from subquad.attention.base import Attention, Maps
from subquad.backbones.carrying import Carrying, CarrySlot
from subquad.backbones.pretrained import maps_of, owners
from subquad.backbones.vision import InBlock, calls_of, stages_of
from subquad.specs import Masks
from subquad.utils.errors import UserError

SUPPORTED = (
    "VisionTransformer, PVTv2 and Twins of timm; BERT, RoBERTa, DistilBERT and ViT of transformers; "
    "nn.TransformerEncoder of torch"
)


@dataclass(frozen=True, kw_only=True)
class Host:
    """One self-attention of a model.

    `max_len` is None where the model does not say how long its inputs are. `maps` are its weights, `lost` the names of
    others, which no attention takes. Hosts of one `stage` have one width. `stack` is what a swapped attention shares
    with those swapped with it. `install` replaces it.
    """

    name: str
    module: nn.Module
    dim: int
    heads: int
    max_len: int | None
    dropout: float
    maps: Maps
    install: Callable[[Attention, CarrySlot], None]
    stage: int = 0
    grid: tuple[int, int] | None = None
    lost: tuple[str, ...] = ()
    stack: CarrySlot | None = None


def hosts_in(model: nn.Module, image_size: int | None = None) -> list[Host]:
    """The self-attentions of a model in order; `image_size` replaces that of a timm model.

    Raises UserError for a model without any that can be replaced.
    """
    found = [*_swapped(model), *_of_torch(model), *_of_transformers(model), *_of_timm(model, image_size)]
    if not found:
        raise UserError(
            f"{type(model).__name__} has no self-attention that can be replaced; supported are {SUPPORTED}. Decoders "
            "and cross-attention are not, because they need causal masks or a second input, and Swin is not, because "
            "its windows are shifted and masked."
        )
    order = [name for name, _ in model.named_modules(remove_duplicate=False)]
    return sorted(found, key=lambda host: order.index(host.name))


def _swapped(model: nn.Module) -> Iterator[Host]:
    """What `swap` put there before, and the attentions of this package's own image models."""
    for name, part in model.named_modules():
        if not isinstance(part, Carrying):
            continue
        own, site = part.attention, part.attention.site

        def install(attention: Attention, slot: CarrySlot, part: Any = part) -> None:
            part.put(attention, slot)

        maps = own.softmax_maps()
        taken = owners(maps.values())
        yield Host(
            name=name, module=own, dim=site.dim, heads=site.heads, max_len=site.query_len, dropout=site.dropout,
            maps=maps, install=install, stage=site.stage, grid=site.grid, stack=part.slot,
            lost=tuple(name for name, tensor in own.named_parameters() if id(tensor) not in taken),
        )  # fmt: skip


class _InEncoderLayer(Carrying):
    """Stands for `nn.MultiheadAttention` in `nn.TransformerEncoderLayer`."""

    in_proj_bias = None  # the layer's fast path would read the weights of softmax attention

    def __init__(self, attention: Attention, slot: CarrySlot, batch_first: bool) -> None:
        super().__init__(attention, slot)
        self.batch_first = batch_first

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = False, attn_mask: Tensor | None = None, is_causal: bool = False,
    ) -> tuple[Tensor, None]:  # fmt: skip
        if attn_mask is not None or is_causal:
            raise UserError("The attentions of this package have no causal or other mask of pairs; pass no `mask`.")
        if query.is_nested or query.dim() != 3:
            raise UserError(
                "The attentions of this package need a batch of three axes; pad nested tensors, and pass "
                "src_key_padding_mask."
            )
        real = None if key_padding_mask is None else key_padding_mask == 0  # True or -inf is padding
        if key_padding_mask is not None and key_padding_mask.is_floating_point():
            check_plain(key_padding_mask)
        y = self.attend(query if self.batch_first else query.transpose(0, 1), Masks(real, real))
        return (y if self.batch_first else y.transpose(0, 1)), None


def _of_torch(model: nn.Module) -> Iterator[Host]:
    encoders = [part for part in model.modules() if isinstance(part, nn.TransformerEncoder)]
    for name, layer in model.named_modules():
        own = layer.self_attn if isinstance(layer, nn.TransformerEncoderLayer) else None
        if not isinstance(own, nn.MultiheadAttention):
            continue

        def install(attention: Attention, slot: CarrySlot, layer: Any = layer, own: Any = own) -> None:
            layer.self_attn = _InEncoderLayer(attention, slot, own.batch_first)
            for encoder in encoders:
                if any(layer is part for part in encoder.layers):
                    encoder.use_nested_tensor = False  # nested tensors have no mask, and only the fast path reads them

        if own.in_proj_weight is None or own.bias_k is not None or own.add_zero_attn:
            raise UserError(
                f"{name or 'This layer'} has kdim, vdim, add_bias_kv or add_zero_attn, which no attention here has."
            )
        biases = [None] * 3 if own.in_proj_bias is None else own.in_proj_bias.chunk(3)
        named = zip(("query", "key", "value"), zip(own.in_proj_weight.chunk(3), biases, strict=True), strict=True)
        yield Host(
            name=f"{name}.self_attn" if name else "self_attn", module=own, dim=own.embed_dim, heads=own.num_heads,
            max_len=None, dropout=own.dropout, install=install,
            maps={**dict(named), "out": (own.out_proj.weight, own.out_proj.bias)},
        )  # fmt: skip


class _InTransformers(Carrying):
    """Stands for an attention of transformers, which returns its output and its weights."""

    inner = "swapped"  # `attention.attention.query` is an old name in ViT, which transformers renames on loading

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        """Names of parameters that are others under a second name; `save_pretrained` writes each parameter once."""
        first = {id(parameter): name for name, parameter in self.named_parameters()}
        named = self.named_parameters(remove_duplicate=False)
        return {name: first[id(parameter)] for name, parameter in named if first[id(parameter)] != name}

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *unused: Any, **ignored: Any
    ) -> tuple[Tensor, None]:
        real = real_tokens(attention_mask)
        return self.attend(hidden_states, Masks(real, real)), None


_NO_PAIRS = (
    "The attentions of this package read padding masks only, and this attention mask differs between queries or has "
    "other values than 0 and large negative ones; pass a mask [batch, tokens]."
)


def real_tokens(mask: Tensor | None) -> Tensor | None:
    """Which tokens are real, from any mask that transformers makes of a padding mask.

    It is [b, n] with 1 at real tokens, or [b, 1, q, n] with True or 0 at real tokens and False or large negative
    numbers at padding. Raises UserError if it is not the same for all queries.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise UserError("Masks of flex attention cannot be read; call model.set_attn_implementation('sdpa').")
    if mask.dim() == 2:
        if mask.is_floating_point() and not torch.compiler.is_compiling() and bool((mask < 0).any()):
            raise UserError("A mask [batch, tokens] is 1 at real tokens and 0 at padding; pass additive_mask > -1.")
        return mask.bool()
    real = mask[:, 0, 0] if mask.dtype == torch.bool else mask[:, 0, 0] >= -1
    if torch.compiler.is_compiling():  # values are not known
        return real
    same = mask.shape[1:3] == (1, 1) or not any(mask.stride()[1:3]) or bool((mask == mask[:, :1, :1]).all())
    if not same:
        raise UserError(_NO_PAIRS)
    check_plain(mask)
    return real


def check_plain(mask: Tensor) -> None:
    """Raises UserError for an additive mask with other values than 0 and large negative ones, if they are known."""
    known = mask.dtype != torch.bool and not torch.compiler.is_compiling()
    if known and not bool(((mask == 0) | (mask < -1e3)).all()):
        raise UserError(_NO_PAIRS)


_JOINED = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
_DISTILBERT = {"query": "q_lin", "key": "k_lin", "value": "v_lin", "out": "out_lin"}


def _of_transformers(model: Any) -> Iterator[Host]:
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if config is None or kind not in ("bert", "roberta", "distilbert", "vit"):
        return
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise UserError(f"This {type(model).__name__} is a causal decoder, and no attention here is causal.")
    if getattr(config, "position_embedding_type", "absolute") != "absolute":
        raise UserError("Relative positions are part of this model's attention, and no attention here has them.")
    names = {"bert": "self", "roberta": "self", "distilbert": "attention", "vit": "attention"}
    for name, parent in model.named_modules():
        own: Any = getattr(parent, names[kind], None)
        if not isinstance(own, nn.Module):
            continue
        linears = next(
            (
                {role: getattr(own, linear) for role, linear in layout.items()}
                for layout in (_JOINED, _DISTILBERT)
                if all(isinstance(getattr(own, linear, None), nn.Linear) for linear in layout.values())
            ),
            None,
        )
        dense = None if linears else getattr(getattr(parent, "output", None), "dense", None)
        if isinstance(dense, nn.Linear) and isinstance(getattr(own, "query", None), nn.Linear):
            linears = {"query": own.query, "key": own.key, "value": own.value, "out": dense}
        if linears is None:
            continue

        def install(
            attention: Attention, slot: CarrySlot, parent: Any = parent, apart: bool = dense is not None
        ) -> None:
            setattr(parent, names[kind], _InTransformers(attention, slot))
            if apart:
                parent.output.dense = nn.Identity()  # the attention has an output map of its own

        dropout = getattr(own, "dropout", None)
        yield Host(
            name=f"{name}.{names[kind]}", module=own, dim=linears["query"].in_features,
            heads=getattr(config, "num_attention_heads", None) or config.n_heads, max_len=_longest(config),
            dropout=dropout.p if isinstance(dropout, nn.Dropout) else float(config.attention_probs_dropout_prob),
            install=install, maps={role: (linear.weight, linear.bias) for role, linear in linears.items()},
        )  # fmt: skip


def _longest(config: Any) -> int:
    """Tokens of the longest input of a model of transformers."""
    if config.model_type == "vit":
        return int((config.image_size // config.patch_size) ** 2) + 1
    # RoBERTa's positions begin after that of padding.
    return int(config.max_position_embeddings - (config.pad_token_id + 1 if config.model_type == "roberta" else 0))


def _of_timm(model: Any, image_size: int | None) -> Iterator[Host]:
    kinds = ("VisionTransformer", "PyramidVisionTransformerV2", "Twins")
    if not any(base.__name__ in kinds and base.__module__.startswith("timm.") for base in type(model).__mro__):
        return
    if all(isinstance(getattr(block, "attn", None), Carrying) for blocks in stages_of(model) for block in blocks):
        return
    side = image_size or next((part.img_size[0] for part in model.modules() if getattr(part, "img_size", None)), None)
    if side is None:
        raise UserError(f"{type(model).__name__} does not say how large its images are; pass it, as image_size=224.")
    names = {id(part): name for name, part in model.named_modules()}
    channels = next(part.in_channels for part in model.modules() if isinstance(part, nn.Conv2d))
    if other := {type(block).__name__ for blocks in stages_of(model) for block in blocks if not hasattr(block, "attn")}:
        raise UserError(f"{', '.join(other)} has no attention of its own that can be replaced.")
    sizes = calls_of(model, channels, (side, side))
    for stage, blocks in enumerate(stages_of(model)):
        for block in blocks:
            own = block.attn
            if isinstance(own, Carrying):
                continue
            others = {name.partition(".")[0] for name, _ in own.named_parameters()} - {"qkv", "q", "kv", "proj"}
            if others - ({"sr", "norm"} if hasattr(own, "kv") else set()):
                raise UserError(f"{names[id(own)]} has {', '.join(sorted(others))}, which no attention here has.")
            tokens, dim, grid = sizes[own]

            def install(attention: Attention, slot: CarrySlot, block: Any = block, own: Any = own) -> None:
                block.attn = InBlock(attention, slot, own.proj_drop)

            yield Host(
                name=names[id(own)], module=own, dim=dim, heads=own.num_heads, max_len=tokens, grid=grid, stage=stage,
                dropout=own.attn_drop.p, maps=maps_of(own), install=install,
                lost=tuple(name for name, _ in own.named_parameters() if name.startswith(("sr.", "norm."))),
            )  # fmt: skip
