"""Types that the whole package shares: sites of attention, padding masks, descriptions of data, batches."""

import abc
import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.utils.errors import UserError


class Pattern(enum.Enum):
    """Self-attention, or cross-attention of one sequence (queries) to another (context).

    Examples:
        >>> from subquad import FNet, Pattern
        >>> Pattern.CROSS in FNet.patterns
        False
    """

    SELF = "self"
    CROSS = "cross"


UNKNOWN = 0
"""The length of a `Site` that states none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The place in a model where one attention is installed.

    Lengths are the longest sequences in tokens that the layer is built for; shorter ones are always allowed, and longer
    ones where the mechanism has no parameter or table of the length. A length of UNKNOWN is none.
    `grid` is (height, width) where the tokens are an image in row-major order. `dropout` acts on attention weights.
    `layer` is the index of the layer, from 0, among the `layers` of its stage; `stage` is the index of the stage of a
    pyramid, from 0.

    Examples:
        >>> from subquad import DBA, Site
        >>> site = Site.of("DBA", dim=64, heads=4, max_len=512, layer=1, layers=2)
        >>> DBA(site, d_p=8).latent is None  # the first layer owns Z
        True
    """

    pattern: Pattern
    dim: int
    heads: int
    query_len: int
    context_len: int
    layer: int = 0
    layers: int = 1
    stage: int = 0
    grid: tuple[int, int] | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if min(self.dim, self.heads) < 1 or min(self.query_len, self.context_len) < 0 or not 0 <= self.dropout < 1:
            raise UserError(
                "An attention needs a width and heads of at least 1, lengths from 0 and a dropout from 0 up to 1; got "
                f"dim {self.dim}, heads {self.heads}, lengths {self.query_len} and {self.context_len}, "
                f"dropout {self.dropout}."
            )

    @classmethod
    def of(cls, owner: str, **given: Any) -> Self:
        """A site of the keywords that an attention takes in place of a site: its fields and `max_len`.

        `max_len` serves as query_len and context_len, and may be missing; `pattern` is "self" (the default) or "cross".
        Raises UserError, which names `owner`, where dim or heads is missing.
        """
        longest, pattern = given.pop("max_len", None) or UNKNOWN, given.pop("pattern", Pattern.SELF)
        lengths: dict[str, Any] = {"query_len": longest, "context_len": longest} | given
        if missing := [name for name in ("dim", "heads") if name not in given]:
            raise UserError(f"{owner} needs {' and '.join(missing)}; write {owner}(dim=256, heads=4).")
        if pattern not in [*Pattern, *(known.value for known in Pattern)]:
            raise UserError(f"The pattern of an attention is self or cross, not {pattern}.")
        return cls(pattern=Pattern(pattern), **lengths)


SITE_SETTINGS = ("max_len", *(field.name for field in dataclasses.fields(Site)))
"""The keywords of `Site.of`."""


Tokens = Float[Tensor, "b n d"]
"""n tokens of width d in each of b rows: the queries of an attention, and in self-attention its context."""
Context = Float[Tensor, "b m d"]
"""The m tokens that an attention reads."""
Mask = Bool[Tensor, "b n"] | None
"""True at real tokens, False at padding; None if no row has padding."""
ContextMask = Bool[Tensor, "b m"] | None


@dataclass(frozen=True, slots=True)
class Masks:
    """Which tokens are real: True = a real token, False = padding, None = no padding anywhere.

    Other code may use the inverse (`key_padding_mask` of `nn.MultiheadAttention`, True = padding: pass `~mask`) or
    numbers added to the logits (0 and -1e30: pass `mask > -1`). Attentions refuse numbers; they cannot detect the
    inverse.

    `class_token`: the first token of the queries and of the context is a class token. A mechanism may treat it apart
    from the sequence or as an ordinary token.

    Examples:
        >>> import torch
        >>> from subquad import Masks, Softmax
        >>> real = torch.arange(6) < torch.tensor([[4], [6]])
        >>> x = torch.randn(2, 6, 8)
        >>> y, carry = Softmax(dim=8, heads=2, max_len=6)(x, x, Masks(query=real, context=real))
    """

    query: Mask = None
    context: ContextMask = None
    class_token: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Sequences as a model is built for them.

    Exactly one of `vocab` (token ids 0..vocab-1, 0 = padding) and `channels` (real-valued steps) is set.
    `classes` is None for regression of one number. `max_len` counts tokens or time steps.

    Examples:
        >>> from subquad import DataSpec
        >>> DataSpec(max_len=128, vocab=20, classes=10).outputs
        10
    """

    what: ClassVar[str] = "sequences"
    max_len: int
    vocab: int | None = None
    channels: int | None = None
    classes: int | None = None

    @property
    def outputs(self) -> int:
        """Width of the model's last layer: logits, or one value."""
        return self.classes or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpec(DataSpec):
    """Tokenised text; where `classes` is None, the tokens themselves are predicted.

    `tokenizer` is a hexadecimal fingerprint of the vocabulary: weights trained with another vocabulary do not fit.

    Examples:
        >>> import torch
        >>> from subquad import TextSpec, build_model
        >>> spec = TextSpec(max_len=64, vocab=100, classes=2, tokenizer="a1")
        >>> model = build_model("language_classifier", spec, dim=32, layers=1, heads=2, ffn=64)
        >>> model(torch.randint(1, 100, (3, 50)), None).shape
        torch.Size([3, 2])
    """

    tokenizer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """Square images as a model is built for them: pixels per side, colour channels, classes.

    Examples:
        >>> import torch
        >>> from subquad import ImageSpec, build_model
        >>> model = build_model("vit", ImageSpec(side=32, channels=3, classes=10), "linear", dim=48, layers=1)
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    what: ClassVar[str] = "images"
    side: int
    channels: int
    classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VQASpec:
    """Questions on images as a model is built for them; the answers are `classes`.

    An image has at most `image_len` tokens of `image_dim` features, a question at most `text_len` tokens. Exactly one
    of `vocab` and `text_dim` is set. With `vocab`, tokens of a question are ids 0..vocab-1 (0 = padding), and their
    embedding is initialised from `word_vectors` [vocab, e] if given. With `text_dim`, each token is a vector of that
    width. `albert` is the folder of an ALBERT whose token ids are used and which the model trains.

    Examples:
        >>> import torch
        >>> from subquad import VQASpec, build_model
        >>> spec = VQASpec(image_len=36, image_dim=16, text_len=14, classes=5, vocab=100)
        >>> model = build_model("mcan", spec, dim=32, layers=1, heads=2, ffn=64)
        >>> model(torch.randn(2, 36, 16), None, torch.randint(1, 100, (2, 14)), None).shape
        torch.Size([2, 5])
    """

    what: ClassVar[str] = "questions on images"
    image_len: int
    image_dim: int
    text_len: int
    classes: int
    vocab: int | None = None
    word_vectors: Tensor | None = None
    text_dim: int | None = None
    albert: str | None = None


@dataclass(frozen=True, slots=True)
class Batch(abc.ABC):
    """A batch of rows; every field is a tensor with one entry per row, or None."""

    padding: ClassVar[tuple[tuple[str, str, str], ...]] = ()
    """The fields of each sequence that is padded on the right and of its mask, and its largest length in the spec."""

    def __len__(self) -> int:
        return len(self.target)

    @property
    @abc.abstractmethod
    def target(self) -> Tensor:
        """The targets of the loss."""

    @property
    def weight(self) -> int:
        """The number of terms in the mean of the loss; by default the number of rows."""
        return len(self)

    @property
    @abc.abstractmethod
    def network_inputs(self) -> tuple[Any, ...]:
        """The arguments of the network's forward call."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """A copy on another device; Lightning calls this."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """A copy in page-locked memory; torch's DataLoader calls this."""
        return self._map(Tensor.pin_memory)

    def rows(self, span: slice) -> Self:
        """The batch of a slice of the rows."""
        return self._map(lambda tensor: tensor[span])

    def padded(self, multiple: int, spec: Any) -> Self:
        """Rounds the length of padded sequences up to a multiple, at most to the largest length of the data's `spec`.

        A batch without padding is returned as it is.
        """
        found = [(name, mask, getattr(spec, limit)) for name, mask, limit in self.padding]
        if all(getattr(self, mask) is None for _, mask, _ in found):
            return self
        changed: dict[str, Any] = {}
        for name, mask, limit in found:
            tokens, valid = getattr(self, name), getattr(self, mask)
            more = min(-(-tokens.shape[1] // multiple) * multiple, limit) - tokens.shape[1]
            if more > 0:
                valid = tokens.new_ones(tokens.shape[:2], dtype=torch.bool) if valid is None else valid
                changed |= {name: F.pad(tokens, (0, 0) * (tokens.ndim - 2) + (0, more)), mask: F.pad(valid, (0, more))}
        return dataclasses.replace(self, **changed)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        tensors: list[Any] = [getattr(self, field.name) for field in dataclasses.fields(self)]
        mapped: list[Any] = [tensor if tensor is None else function(tensor) for tensor in tensors]
        return type(self)(*mapped)


@dataclass(frozen=True, slots=True)
class SequenceBatch(Batch):
    """Labelled sequences, padded on the right.

    `valid` is True at real tokens, or None when no row has padding. `target` holds class indices or real values.
    """

    padding = (("inputs", "valid", "max_len"),)

    inputs: Int[Tensor, "b n"] | Float[Tensor, "b n c"]
    valid: Mask
    target: Int[Tensor, " b"] | Float[Tensor, " b"]

    @property
    def network_inputs(self) -> tuple[Tensor, Tensor | None]:
        return self.inputs, self.valid


@dataclass(frozen=True, slots=True)
class ImageBatch(Batch):
    """Labelled, normalised images. `target` holds class indices, or class probabilities for mixup and CutMix."""

    images: Float[Tensor, "b c h w"]
    target: Int[Tensor, " b"] | Float[Tensor, "b classes"]

    @property
    def network_inputs(self) -> tuple[Tensor]:
        return (self.images,)


@dataclass(frozen=True, slots=True)
class MaskedBatch(Batch):
    """Text with masked tokens. `target` is the original token at masked positions and UNMASKED everywhere else.

    `places` holds row and column of each masked token. They are found when the batch is made, on the CPU: on a GPU, to
    count them would wait for the device.
    """

    inputs: Int[Tensor, "b n"]
    valid: Mask
    target: Int[Tensor, "b n"]
    places: Int[Tensor, "m 2"] | None = None

    def __post_init__(self) -> None:
        if self.places is None:
            object.__setattr__(self, "places", (self.target != UNMASKED).nonzero())

    @property
    def weight(self) -> int:
        assert self.places is not None
        return len(self.places)

    @property
    def network_inputs(self) -> tuple[Tensor, Tensor | None, Tensor]:
        assert self.places is not None
        return self.inputs, self.valid, self.places

    def rows(self, span: slice) -> Self:
        """The batch of a slice of the rows."""
        return type(self)(self.inputs[span], None if self.valid is None else self.valid[span], self.target[span])


UNMASKED = -100
"""The target of a token that is not predicted; the default `ignore_index` of torch's cross entropy."""


@dataclass(frozen=True, slots=True)
class PairBatch(Batch):
    """Labelled pairs of token sequences, all padded on the right to one length.

    Each mask is True at real tokens, or None when no row of its side has padding. `target` holds class indices.
    """

    padding = (("first", "first_valid", "max_len"), ("second", "second_valid", "max_len"))

    first: Int[Tensor, "b n"]
    first_valid: Mask
    second: Int[Tensor, "b n"]
    second_valid: Mask
    target: Int[Tensor, " b"]

    @property
    def network_inputs(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        return self.first, self.first_valid, self.second, self.second_valid


@dataclass(frozen=True, slots=True)
class VQABatch(Batch):
    """Questions on images; both are padded on the right.

    The masks are True at real tokens. `target` is the soft score of each answer in training, `scores` the score of each
    answer by the official evaluator; `answer_type` is 0 yes/no, 1 number, 2 other.
    """

    padding = (("image", "image_valid", "image_len"), ("question", "question_valid", "text_len"))

    image: Float[Tensor, "b n c"]
    image_valid: Mask
    question: Int[Tensor, "b m"] | Float[Tensor, "b m e"]
    question_valid: ContextMask
    scores: Float[Tensor, "b classes"]
    answer_type: Int[Tensor, " b"]
    target: Float[Tensor, "b classes"]  # last, because dataclass takes the property of Batch for its default value

    @property
    def network_inputs(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        return self.image, self.image_valid, self.question, self.question_valid
