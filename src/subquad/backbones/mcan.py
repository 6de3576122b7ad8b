"""MCAN, the modular co-attention network of Yu et al. 2019 (https://arxiv.org/abs/1906.10770), as in OpenVQA."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Attention, AttentionFactory, Carry, UnsupportedPattern
from subquad.blocks.dropout_layer import Dropout
from subquad.blocks.layer import FeedForward, Layer
from subquad.blocks.mcan_norm import UnbiasedLayerNorm
from subquad.blocks.question_encoder import question_encoder
from subquad.ops.masks import masked_softmax
from subquad.specs import Context, ContextMask, Mask, Masks, Pattern, Site, Tokens, VQASpec
from subquad.utils.setting_types import BelowOne, CheckedSettings, Count

Place = Literal["self_text", "self_image", "cross"]
"""Sites of attention: within the question, within the image, and from the image to the question."""

_READOUT_HIDDEN = 512


class Residual(nn.Module):
    """x ← norm(x + dropout(y)), the end of each sublayer."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = UnbiasedLayerNorm(dim), Dropout(dropout)

    def forward(self, x: Tokens, y: Tokens) -> Tokens:
        return self.norm(x + self.dropout(y))


class CoAttentionLayer(Layer):
    """Self-attention, attention to a context, and a feed-forward net; either attention may be None.

    The paper's "SA" has no attention to a context, its "SGA" has both.
    """

    def __init__(self, dim: int, ffn: int, dropout: float, own: Attention | None, guided: Attention | None) -> None:
        super().__init__()
        self.own, self.guided = own, guided
        self.feed_forward = FeedForward(dim, ffn, dropout, nn.ReLU)
        steps = [name for name, part in (("own", own), ("guided", guided)) if part is not None]
        self.after = nn.ModuleDict({name: Residual(dim, dropout) for name in (*steps, "feed_forward")})

    def forward(
        self, x: Tokens, context: Context, masks: Masks, carries: tuple[Carry, Carry]
    ) -> tuple[Tokens, tuple[Carry, Carry]]:
        """`masks` of x and of the context; `carries` of the two attentions."""
        own, guided = carries
        if self.own is not None:
            y, own = self.own(x, x, Masks(masks.query, masks.query), own)
            x = self.after["own"](x, y)
        if self.guided is not None:
            y, guided = self.guided(x, context, masks, guided)
            x = self.after["guided"](x, y)
        return self.after["feed_forward"](x, self.feed_forward(x)), (own, guided)


class AttentionReadout(nn.Module):
    """A linear map of the weighted sum of the real tokens; a small net and a softmax give the weights."""

    def __init__(self, dim: int, out: int, dropout: float) -> None:
        super().__init__()
        self.score = nn.Sequential(
            nn.Linear(dim, _READOUT_HIDDEN), nn.ReLU(), Dropout(dropout), nn.Linear(_READOUT_HIDDEN, 1)
        )
        self.map = nn.Linear(dim, out)

    def forward(self, x: Tokens, valid: Mask) -> Float[Tensor, "b e"]:
        weights = masked_softmax(self.score(x).mT, None if valid is None else valid[:, None])
        return self.map((weights @ x).squeeze(1))


class MCAN(nn.Module, CheckedSettings):
    """Maps images and questions to `[b, answers]` logits.

    `layers` layers of self-attention on the question; then as many on the image, each with self-attention and attention
    to the last layer of the question; a read-out of each, added, normalised and mapped to the answers. There are no
    position embeddings: the LSTM or ALBERT encodes the order of words, and the cells of an image have none.

    attention: the mechanism under study, at the sites in `studied`; None: at every site that it supports.
    exact: the mechanism of the other sites.
    image_self: False leaves out self-attention on the image, as in the baselines with two attentions of DBA
        (https://arxiv.org/abs/2211.16368, Table 4).

    Released code: treats all-zero rows as padding, which the data state here; initialises all maps as torch does.
    """

    section = "backbone"

    def __init__(
        self, spec: VQASpec, attention: AttentionFactory, exact: AttentionFactory, layers: Count, dim: Count,
        heads: Count, ffn: Count, dropout: BelowOne = 0.1, studied: Sequence[Place] | None = None,
        image_self: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.image_map = nn.Linear(spec.image_dim, dim)
        self.question = question_encoder(spec, dim)
        words, cells = spec.text_len, spec.image_len
        wirings = {
            "self_text": (Pattern.SELF, words, words),
            "self_image": (Pattern.SELF, cells, cells),
            "cross": (Pattern.CROSS, cells, words),
        }

        def at(place: Place, number: int) -> Attention:
            pattern, queries, context = wirings[place]
            site = Site(
                pattern=pattern, dim=dim, heads=heads, query_len=queries, context_len=context, layer=number,
                layers=layers, dropout=dropout,
            )  # fmt: skip
            if studied is not None:
                return (attention if place in studied else exact)(site=site)
            try:
                return attention(site=site)
            except UnsupportedPattern:
                return exact(site=site)

        layer = partial(CoAttentionLayer, dim, ffn, dropout)
        self.text_layers = nn.ModuleList(layer(at("self_text", i), None) for i in range(layers))
        self.image_layers = nn.ModuleList(
            layer(at("self_image", i) if image_self else None, at("cross", i)) for i in range(layers)
        )
        self.text_readout, self.image_readout = (AttentionReadout(dim, 2 * dim, dropout) for _ in range(2))
        self.norm = UnbiasedLayerNorm(2 * dim)
        self.head = nn.Linear(2 * dim, spec.classes)

    def forward(
        self, image: Float[Tensor, "b n c"], image_valid: Mask, question: Tensor, question_valid: ContextMask
    ) -> Float[Tensor, "b classes"]:
        """`question` holds token ids `[b, m]` or features `[b, m, e]`; the masks are True at real tokens."""
        text, carries = self.question(question, question_valid), (None, None)
        for layer in self.text_layers:
            text, carries = layer(text, text, Masks(question_valid, question_valid), carries)
        x, carries = self.image_map(image), (None, None)
        for layer in self.image_layers:
            x, carries = layer(x, text, Masks(image_valid, question_valid), carries)
        return self.head(self.norm(self.text_readout(text, question_valid) + self.image_readout(x, image_valid)))

    @property
    def stack_parameters(self) -> int:
        """Parameters of the attentions, feed-forward nets and norms of all layers.

        The "parameters in attention layers" of published tables: without embeddings, LSTM, maps of features, read-outs
        and classifier.
        """
        stack = (*self.text_layers.parameters(), *self.image_layers.parameters())
        return sum(parameter.numel() for parameter in stack)
