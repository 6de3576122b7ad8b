"""Luna: linear unified nested attention (Ma et al. 2021, https://arxiv.org/abs/2106.01540, Eq. 5-7)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention.base import Affine, Attention, Carry, Maps
from subquad.ops.dropout import dropout
from subquad.ops.heads import split_heads
from subquad.ops.latent_attention import columns_of_heads, compress, expand, rows_of_heads
from subquad.ops.linear_attention_on_gpu import weights_of
from subquad.ops.luna_on_gpu import luna
from subquad.ops.softmax_attention import softmax_attention
from subquad.specs import Context, ContextMask, Masks, Pattern, Site, Tokens
from subquad.utils.devices import at_once, eager_on_gpu
from subquad.utils.errors import UserError
from subquad.utils.fixed_weights import once
from subquad.utils.setting_types import BelowOne, Count


class Luna(Attention):
    """Packs the context into l latent rows P, which the queries attend to; the next layer gets P.

    pack:   P' = softmax(P W_pq (C W_pk)ᵀ / √d_h) C W_pv        in each head
    unpack: Y  = softmax(X W_q (P' W_k)ᵀ / √d_h) P' W_v W_o     in each head
    carry:  P  ← LayerNorm(P + dropout(P'))

    The first layer owns the learned P.

    Args:
        l: number of latent rows (the paper's projection length).
        dynamic: hide latent rows beyond the length of a sequence shorter than l, as the released code does.
        latent_norm: apply LayerNorm to the learned P, which then starts at N(0, 1/d) and not at N(0, 1).
        latent_dropout: dropout of the learned P, after its norm, and of each P' that is passed to the next layer.

    Why the fast path is equal: products are associated so that, if h·l < d, no n x d query, key or value is formed:
    P W_pq,h W_pk,hᵀ multiplies the context itself, and the compressed rows are projected afterwards.

    Examples:
        >>> import torch
        >>> from subquad import Luna, Masks
        >>> x = torch.randn(2, 300, 64)
        >>> Luna(dim=64, heads=4, l=8)(x).shape
        torch.Size([2, 300, 64])

        In a stack, the first layer owns P and each layer passes an updated P to the next:

        >>> y, carry = x, None
        >>> for layer in [Luna(dim=64, heads=4, layer=i, layers=3) for i in range(3)]:
        ...     change, carry = layer(y, y, Masks(), carry)
        ...     y = y + change

    Released code: latent_norm where the embeddings have a norm, latent_dropout as all hidden dropout; the weights of
    packing are dropped too; keys and values may share one map. P starts at N(0, 1/d); in models with sinusoidal
    positions it is multiplied by √d and has sinusoids added.
    """

    patterns = frozenset(Pattern)
    complexity = "time O(n l d), memory O(n (d + h l))"

    def __init__(
        self,
        site: Site,
        l: Count = 16,  # noqa: E741  the paper's letter
        dynamic: bool = True,
        latent_norm: bool = False,
        latent_dropout: BelowOne = 0.0,
    ) -> None:
        super().__init__(site)
        dim, first, self.latent_dropout = site.dim, site.layer == 0, latent_dropout
        self.l, self.dynamic, self.heads = l, dynamic, site.heads
        self.pack_query, self.pack_value = (Affine(dim, dim) for _ in range(2))
        # A bias of these keys would be constant along the tokens, and the softmax over tokens drops it.
        self.pack_key = nn.Linear(dim, dim, bias=False)
        self.query, self.key, self.value, self.out = (Affine(dim, dim) for _ in range(4))
        self.latent = nn.Parameter(torch.randn(l, dim) * (dim**-0.5 if latent_norm else 1)) if first else None
        self.latent_norm = nn.LayerNorm(dim) if first and latent_norm else None
        self.norm = nn.LayerNorm(dim) if site.layer < site.layers - 1 else None

    def softmax_maps(self) -> Maps:
        """The maps that read the tokens; keys and values of the packed sequence have no counterpart."""
        named = (("query", self.query), ("key", self.pack_key), ("value", self.pack_value), ("out", self.out))
        return {name: (linear.weight, linear.bias) for name, linear in named}

    def attend_with_carry(self, x: Tokens, context: Context, masks: Masks, carry: Carry) -> tuple[Tokens, Carry]:
        self.check_lengths(x, context)
        slots = self._latent_mask(masks.context, context)
        if self._few_operators(x, context):
            latent = self._latent(carry, x.shape[0], alike=True)
            maps = self.pack_value, self.query, self.key, self.value, self.out
            weights = [*weights_of(self.pack_query), self.pack_key.weight, *weights_of(*maps)]
            y, packed = luna(x, context, latent, masks.context, slots, weights, self.heads, self._dropout)
        else:
            latent = self._latent(carry, x.shape[0])
            packed = self._pack(latent, context, masks.context)
            y = self._unpack(x, packed, slots)
        return y, carry if self.norm is None else self.norm(latent + self._dropped(packed))

    def _few_operators(self, x: Tensor, context: Tensor) -> bool:
        """Whether `luna` supports this call, and the weights of all tokens may be in memory at once."""
        length = max(x.shape[1], context.shape[1])
        return self._narrow and eager_on_gpu(x) and len(x) * length <= at_once(x, 0, self.heads * self.l)

    def _latent(self, carry: Carry, batch: int, alike: bool = False) -> Float[Tensor, "b l d"]:
        """P; with `alike`, the batch axis may be 1 where all rows are equal."""
        if carry is not None:
            return carry
        if self.latent is None:
            raise UserError(
                f"Luna in layer {self.site.layer} needs the latent of the layer before it; use Luna in all layers."
            )
        start, norm = self.latent, self.latent_norm
        own = () if norm is None else tuple(norm.parameters())
        latent = once((self, "latent"), lambda: (start if norm is None else norm(start))[None], start, *own)
        if alike and not (self.training and self.latent_dropout):
            return latent
        return self._dropped(latent.expand(batch, -1, -1))

    def _dropped(self, latent: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        return dropout(latent, self.latent_dropout, self.training)

    def _latent_mask(self, mask: ContextMask, context: Context) -> Bool[Tensor, "c l"] | None:
        length = context.shape[1]
        if not self.dynamic or (mask is None and length >= self.l):
            return None
        slots = torch.arange(self.l, device=context.device)[None]
        return slots < (length if mask is None else mask.sum(1, keepdim=True))

    def _pack(self, latent: Float[Tensor, "b l d"], context: Context, mask: ContextMask) -> Float[Tensor, "b l d"]:
        queries = self._split(self.pack_query(latent))
        if self._narrow:
            # (P W_pq)(C W_pk)ᵀ = (P W_pq W_pkᵀ) Cᵀ.
            compressor = queries @ rows_of_heads(self.pack_key, self.heads) * self._scale
            packed = compress(compressor.flatten(1, 2), context, mask).unflatten(1, (self.heads, -1))
            # Rows of the weights sum to 1, so A (C W + b) = (A C) W + b.
            return self._join(packed @ rows_of_heads(self.pack_value, self.heads).mT) + self.pack_value.bias
        keys, values = self._split(self.pack_key(context)), self._split(self.pack_value(context))
        real = None if mask is None else mask[:, None, None, :]
        return self._join(softmax_attention(queries, keys, values, attn_mask=real))

    def _unpack(self, x: Tokens, packed: Float[Tensor, "b l d"], mask: Bool[Tensor, "c l"] | None) -> Tokens:
        keys, values = self._split(self.key(packed)), self._split(self.value(packed))
        if self._narrow:
            keys = keys * self._scale
            bias = (keys @ self.query.bias.view(self.heads, -1, 1)).squeeze(-1)
            rows = values @ columns_of_heads(self.out, self.heads)
            return expand(
                x, keys @ rows_of_heads(self.query, self.heads), bias, rows, self.out.bias, mask, self._dropout
            )
        slots = None if mask is None else mask[:, None, None, :]
        queries = self._split(self.query(x))
        return self.out(self._join(softmax_attention(queries, keys, values, attn_mask=slots, dropout_p=self._dropout)))

    @property
    def _narrow(self) -> bool:
        return self.heads * self.l < self.site.dim

    @property
    def _scale(self) -> float:
        return (self.site.dim // self.heads) ** -0.5

    def _split(self, x: Tokens) -> Float[Tensor, "b h n e"]:
        return split_heads(x, self.heads)

    def _join(self, x: Float[Tensor, "b h n e"]) -> Tokens:
        return x.transpose(1, 2).flatten(-2)
