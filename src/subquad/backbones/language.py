"""The language model of RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692) with any attention.

The encoder is that of Devlin et al. 2019, https://arxiv.org/abs/1810.04805; the heads are those of RoBERTa's code.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.attention.base import AttentionFactory, Carry
from subquad.backbones.encoder import Encoder, Pretrainable
from subquad.blocks.dropout_layer import Dropout
from subquad.blocks.embeddings import NeighbourConvolution, SinusoidalPositions, TokenEmbedding, positions
from subquad.blocks.init import draw_linear_maps
from subquad.blocks.layer import TransformerLayer
from subquad.specs import DataSpec, Mask, Masks, Pattern, Site, TextSpec, Tokens
from subquad.utils.errors import UserError
from subquad.utils.setting_types import BelowOne, CheckedSettings, Count, Odd

STD = 0.02
"""Standard deviation of the initial weights, as in BERT."""


class LanguageEncoder(nn.Module, CheckedSettings):
    """Maps token ids `[b, n]` to vectors `[b, n, d]`: embeddings and positions, LayerNorm, dropout, layers.

    order: "post" normalisation as published, or "pre" with a final norm. position: "learned" as published, or
    "sinusoidal", with which small models learn the neighbours of a token sooner, or "none". attention: makes the
    attention of each site; None: no attention. convolution: width in tokens of a convolution in front of the layers, as
    in the attention models of Arora et al. 2024, https://arxiv.org/abs/2312.04927; None: no convolution, as published.
    `tokenizer` is the fingerprint of the vocabulary; it is stored with the weights.
    """

    section = "backbone"
    tokenizer: Tensor

    def __init__(
        self, spec: DataSpec, attention: AttentionFactory | None, layers: Count, dim: Count, heads: Count, ffn: Count,
        dropout: BelowOne = 0.1, attention_dropout: BelowOne = 0.1, order: Literal["pre", "post"] = "post",
        position: Literal["learned", "sinusoidal", "none"] = "learned", convolution: Odd | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(spec, TextSpec) or spec.vocab is None:
            raise UserError(
                "A language-model backbone needs tokenised text, and these data are not; choose "
                "backbone=sequence or another recipe."
            )
        self.register_buffer("tokenizer", torch.tensor(int(spec.tokenizer, 16)))
        self.embed = TokenEmbedding(spec.vocab, dim, STD)
        # Sinusoids as large as the embeddings, so that both have the same share of the normalised sum.
        self.position = positions(position, spec.max_len, dim, STD if position == "learned" else STD * math.sqrt(2))
        self.embed_norm = nn.LayerNorm(dim)
        self.convolution = None if convolution is None else NeighbourConvolution(dim, convolution)
        self.dropout = Dropout(dropout)

        def layer(number: int) -> TransformerLayer:
            site = Site(
                pattern=Pattern.SELF, dim=dim, heads=heads, query_len=spec.max_len, context_len=spec.max_len,
                layer=number, layers=layers, dropout=attention_dropout,
            )  # fmt: skip
            return TransformerLayer(None if attention is None else attention(site=site), dim, ffn, dropout, order)

        self.layers = nn.ModuleList(layer(number) for number in range(layers))
        self.norm = nn.LayerNorm(dim) if order == "pre" else nn.Identity()
        draw_linear_maps(self, STD)

    def forward(self, inputs: Int[Tensor, "b n"], valid: Mask) -> Tokens:
        x = self.embed_norm(self.position(self.embed(inputs)))
        x = self.dropout(x if self.convolution is None else self.convolution(x, valid))
        carry: Carry = None
        for layer in self.layers:
            x, carry = layer(x, Masks(valid, valid), carry)
        return self.norm(x)

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Raises UserError where the entries `encoder.*` of a state dict do not fit this encoder."""
        tokenizer = weights.get("encoder.tokenizer")
        if tokenizer is not None and not torch.equal(tokenizer.cpu(), self.tokenizer.cpu()):
            raise UserError(
                "The weights of ckpt_path were trained with another tokenizer than the one of these data; set "
                "data.tokenizer to its folder (a run that trained a tokenizer stored it in tokenizers/ of the data)."
            )
        own = self.state_dict(prefix="encoder.")
        given = {name: weight for name, weight in weights.items() if name.startswith("encoder.")}
        for name in [*own, *given]:
            here, there = (list(side[name].shape) if name in side else "nothing" for side in (own, given))
            if here != there:
                raise UserError(
                    f"The weights of ckpt_path do not fit this model ({name} is {here} here and {there} there); use "
                    "the attention, the recipe's sizes and the data.max_len of their run."
                )


class LanguageModel(nn.Module, Pretrainable):
    """Predicts masked tokens: logits over the vocabulary at the chosen places (row, column) only.

    Head: dense, GELU, LayerNorm, then the transposed embedding and a bias. No `[b, n, vocab]` tensor is made.
    `sizes` are those of `LanguageEncoder`.
    """

    def __init__(self, spec: DataSpec, attention: AttentionFactory | None, dim: Count, **sizes: Any) -> None:
        super().__init__()
        self.encoder = LanguageEncoder(spec, attention, dim=dim, **sizes)
        self.dense = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.bias = nn.Parameter(torch.zeros(self.encoder.embed.num_embeddings))
        draw_linear_maps(self.dense, STD)

    def forward(self, inputs: Int[Tensor, "b n"], valid: Mask, chosen: Int[Tensor, "m 2"]) -> Float[Tensor, "m vocab"]:
        x = self.chosen_vectors(self.encoder(inputs, valid), valid, chosen)
        return F.linear(self.norm(F.gelu(self.dense(x))), self.encoder.embed.weight, self.bias)

    def chosen_vectors(self, x: Tokens, valid: Mask, chosen: Int[Tensor, "m 2"]) -> Float[Tensor, "m d"]:
        """What the head reads for each of the chosen places: the vector of the token there."""
        return x[chosen.unbind(1)]

    def adapt_state_dict(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Checks the weights of another run of this model and returns them."""
        self.encoder.check_weights(weights)
        return weights


class Autoencoder(LanguageModel):
    """Predicts the tokens of a row from one vector, that of its last token, and the place that is asked for.

    A chosen place j of row i is read from f(x[i, last] + p_j): sinusoids p; in f LayerNorm, a linear map, GELU and
    LayerNorm; then the head. So the layers have to bring the whole row into one token.

    Source: Poli et al. 2024, https://arxiv.org/abs/2403.17844, Appendix B (compression), and its code.
    """

    def __init__(self, spec: DataSpec, attention: AttentionFactory | None, dim: Count, **sizes: Any) -> None:
        super().__init__(spec, attention, dim, **sizes)
        self.places = SinusoidalPositions(spec.max_len, dim)
        self.decoder = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        draw_linear_maps(self.decoder, STD)

    def chosen_vectors(self, x: Tokens, valid: Mask, chosen: Int[Tensor, "m 2"]) -> Float[Tensor, "m d"]:
        last = x[:, -1] if valid is None else x[torch.arange(len(x), device=x.device), valid.sum(1) - 1]
        return self.decoder(super().chosen_vectors(self.places(last[:, None].expand_as(x)), valid, chosen))


class LanguageClassifier(Encoder, Pretrainable):
    """Predicts one label for a text or a pair of texts from the first token, <s>: dropout, dense, tanh, dropout, head.

    `sizes` are those of `LanguageEncoder`.
    """

    def __init__(
        self, spec: DataSpec, attention: AttentionFactory | None, dim: Count, dropout: BelowOne = 0.1, **sizes: Any
    ) -> None:
        super().__init__()
        self.encoder = LanguageEncoder(spec, attention, dim=dim, dropout=dropout, **sizes)
        self.dense = nn.Linear(dim, dim)
        self.dropout = Dropout(dropout)
        self.feature_dim = dim
        self.head = nn.Linear(dim, spec.outputs)
        for linear in (self.dense, self.head):
            draw_linear_maps(linear, STD)

    def features(self, inputs: Int[Tensor, "b n"], valid: Mask) -> Float[Tensor, "b d"]:
        first = self.encoder(inputs, valid)[:, 0]
        return self.dropout(torch.tanh(self.dense(self.dropout(first))))

    def adapt_state_dict(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Weights of another classifier, or the encoder of a language model with the head of this model."""
        self.encoder.check_weights(weights)
        own = {name: weight for name, weight in self.state_dict().items() if not name.startswith("encoder.")}
        if own.keys() <= weights.keys():
            return weights
        return {**{name: weight for name, weight in weights.items() if name.startswith("encoder.")}, **own}
