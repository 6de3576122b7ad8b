"""Self-attentions in models of timm, transformers and torch: where they are, their sizes and weights."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from subquad.attention.base import Attention
from subquad.backbones.carrying import Carrying, CarrySlot
from subquad.backbones.pretrained import owners
from subquad.library.host import Host
from subquad.library.hosts_of_timm import hosts_of_timm
from subquad.library.hosts_of_transformers import hosts_of_transformers
from subquad.library.padding import check_plain
from subquad.library.rotary import Rotating
from subquad.specs import Masks
from subquad.utils.errors import UserError

SUPPORTED = (
    "encoders of transformers, and vision transformers, EVA, BEiT, PVTv2 and Twins of timm, whose attentions have "
    "projections of known names (q_proj, k_proj, v_proj, o_proj; qkv, proj; ...), and nn.TransformerEncoder of torch"
)


def hosts_in(model: nn.Module, image_size: int | None = None) -> list[Host]:
    """The self-attentions of a model in order; `image_size` replaces that of a timm model.

    Raises UserError for a model without any that can be replaced.
    """
    found = [*_swapped(model), *_of_torch(model), *hosts_of_transformers(model), *hosts_of_timm(model, image_size)]
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
            rotary=isinstance(part, Rotating) and part.rotary,
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
