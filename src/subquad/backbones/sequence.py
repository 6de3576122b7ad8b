"""The sequence encoder of the LRA models: embed, encode, pool, predict."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import AttentionFactory, Carry
from subquad.backbones.encoder import Encoder
from subquad.blocks.dropout_layer import Dropout
from subquad.blocks.embeddings import ClassToken, embedding, positions
from subquad.blocks.head import flatten_tokens, output_head
from subquad.blocks.init import draw_linear_maps
from subquad.blocks.layer import TransformerLayer
from subquad.ops.masks import masked_mean
from subquad.specs import DataSpec, Mask, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import BelowOne, Count, NonNegative

Pooling = Literal["cls", "cls_apart", "first", "mean", "flatten"]


class SequenceEncoder(Encoder):
    """A transformer encoder for labelled sequences; maps inputs `[b, n]` or `[b, n, c]` to `[b, outputs]`.

    attention: makes the attention of each site; None leaves attention out.
    order: "pre" (with a final norm) or "post" normalisation; embed_norm: LayerNorm on the embeddings.
    pooling: "cls" reads a learned token in front of the sequence; "cls_apart" adds it in the last layer only and does
        not normalise it before the attention (Transformer-LS treats it separately there, other mechanisms as an
        ordinary first token); "first" reads the first token; "mean" averages real tokens; "flatten" reads all.
    position_scale: amplitude of sinusoids, or standard deviation of learned positions; token_std: standard deviation of
        token embeddings.
    tie_layers: all layers share one set of weights. init_std: the linear maps outside the attention are drawn from
        N(0, init_std²), as in BERT; None: torch's initialisation.
    head_hidden: width of a hidden layer in the head, or None.
    """

    def __init__(
        self, spec: DataSpec, attention: AttentionFactory | None, layers: Count, dim: Count, heads: Count, ffn: Count,
        dropout: BelowOne = 0.0, attention_dropout: BelowOne = 0.0, order: Literal["pre", "post"] = "pre",
        embed_norm: bool = False, pooling: Pooling = "mean",
        position: Literal["learned", "sinusoidal", "none"] = "learned", position_scale: NonNegative = 0.02,
        token_std: NonNegative = 0.02, tie_layers: bool = False, init_std: NonNegative | None = None,
        head_hidden: Count | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        length = spec.max_len + (pooling in ("cls", "cls_apart"))
        self.max_len, self.pooling = spec.max_len, pooling
        self.embed = embedding(spec, dim, token_std)
        self.position = positions(position, spec.max_len + (pooling == "cls"), dim, position_scale)
        self.embed_norm = nn.LayerNorm(dim) if embed_norm else nn.Identity()
        self.dropout = Dropout(dropout)
        self.class_token = ClassToken(dim) if pooling in ("cls", "cls_apart") else None

        def layer(number: int) -> TransformerLayer:
            site = Site(
                pattern=Pattern.SELF, dim=dim, heads=heads, query_len=length, context_len=length,
                layer=number, layers=layers, dropout=attention_dropout,
            )  # fmt: skip
            return TransformerLayer(None if attention is None else attention(site=site), dim, ffn, dropout, order)

        self.layers = nn.ModuleList([layer(0)] * layers if tie_layers else [layer(i) for i in range(layers)])
        self.norm = nn.LayerNorm(dim) if order == "pre" else nn.Identity()
        self.feature_dim = dim * spec.max_len if pooling == "flatten" else dim
        self.head = output_head(self.feature_dim, spec.outputs, head_hidden)
        if init_std is not None:
            draw_linear_maps(self, init_std)

    def features(self, inputs: Tensor, valid: Mask) -> Float[Tensor, "b f"]:
        x = self.embed(inputs)
        if self.pooling == "cls" and self.class_token is not None:
            x, valid = self.class_token(x, valid)
        x = self.dropout(self.embed_norm(self.position(x)))
        carry: Carry = None
        for number, layer in enumerate(self.layers):
            apart = number == len(self.layers) - 1 and self.pooling == "cls_apart"
            if apart and self.class_token is not None:
                x, valid = self.class_token(x, valid)
            x, carry = layer(x, Masks(valid, valid, apart), carry)
        return self._pool(x, valid)

    def _pool(self, x: Tokens, valid: Mask) -> Float[Tensor, "b f"]:
        if self.pooling in ("cls", "cls_apart", "first"):
            return self.norm(x[:, 0])
        x = self.norm(x)
        return masked_mean(x, valid).squeeze(1) if self.pooling == "mean" else flatten_tokens(x, valid, self.max_len)
