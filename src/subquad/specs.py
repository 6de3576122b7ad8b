"""The nouns that every floor shares: where an attention sits, which tokens are real, what a batch holds."""

import abc
import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.utils.errors import UserError


class Pattern(enum.Enum):
    """Who attends to whom: a sequence to itself, or one sequence (queries) to another (context)."""

    SELF = "self"
    CROSS = "cross"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The place in a model where one attention is installed.

    Lengths are the longest sequences, in tokens, that the model will be given; shorter ones are always allowed.
    `grid` is (height, width) where the tokens are an image in row-major order. `dropout` acts on attention weights.
    `layer` of `layers` counts within a stage; `stage` counts the stages of a pyramid, from 0.
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
        if min(self.dim, self.heads, self.query_len, self.context_len) < 1 or not 0 <= self.dropout < 1:
            raise UserError(
                "An attention needs a width, heads and lengths of at least 1 and a dropout from 0 up to 1; got "
                f"dim {self.dim}, heads {self.heads}, lengths {self.query_len} and {self.context_len}, "
                f"dropout {self.dropout}."
            )


@dataclass(frozen=True, slots=True)
class Masks:
    """Which tokens are real: True = a real token, False = padding, None = no padding anywhere.

    `class_token`: the first token, of the queries and of the context, is a class token that a mechanism may keep apart
    from the sequence. Other mechanisms treat it as an ordinary token.
    """

    query: Bool[Tensor, "b n"] | None = None
    context: Bool[Tensor, "b m"] | None = None
    class_token: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """What a model must know about its data before the first batch.

    Exactly one of `vocab` (token ids 0..vocab-1, 0 = padding) and `channels` (real-valued steps) is set.
    `classes` is None for regression of one number. `max_len` counts tokens or time steps.
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
    """Text cut into tokens by a tokenizer; where `classes` is None, the tokens themselves are predicted.

    `tokenizer` is a fingerprint of its vocabulary, hexadecimal: the weights of one vocabulary mean nothing in another.
    """

    tokenizer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """What a model must know about square images: pixels of an edge, colour channels, classes."""

    what: ClassVar[str] = "images"
    side: int
    channels: int
    classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VQASpec:
    """What a model must know about questions on images; answers are `classes`.

    An image is at most `image_len` tokens of `image_dim` numbers, a question at most `text_len` tokens. One of two says
    what the tokens of a question are: ids 0..vocab-1 (0 = padding), whose embedding starts from `word_vectors`
    [vocab, e] where those are given; or `text_dim` numbers each. With `albert`, a folder, the ids are those of the
    ALBERT in it, which the model holds and trains.
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
    """Rows that travel together; every field is a tensor with one entry a row, or None.

    A family of data adds its fields and says which of them the network is called with.
    """

    def __len__(self) -> int:
        return len(self.target)

    @property
    @abc.abstractmethod
    def target(self) -> Tensor:
        """What the outputs of the network are compared with."""

    @property
    def weight(self) -> int:
        """How many things the mean of the loss runs over: rows, where nothing else is said."""
        return len(self)

    @property
    @abc.abstractmethod
    def network_inputs(self) -> tuple[Any, ...]:
        """What the network is called with."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """A copy on another device; Lightning calls this."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """A copy in page-locked memory; torch's DataLoader calls this."""
        return self._map(Tensor.pin_memory)

    def rows(self, chosen: slice) -> Self:
        """Some of the rows."""
        return self._map(lambda tensor: tensor[chosen])

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        tensors: list[Any] = [getattr(self, field.name) for field in dataclasses.fields(self)]
        moved: list[Any] = [tensor if tensor is None else function(tensor) for tensor in tensors]
        return type(self)(*moved)


@dataclass(frozen=True, slots=True)
class SequenceBatch(Batch):
    """Labelled sequences, padded on the right.

    `valid` is True at real tokens, or None when no row has padding. `target` holds class indices or real values.
    """

    inputs: Int[Tensor, "b n"] | Float[Tensor, "b n c"]
    valid: Bool[Tensor, "b n"] | None
    target: Int[Tensor, " b"] | Float[Tensor, " b"]

    @property
    def network_inputs(self) -> tuple[Tensor, Tensor | None]:
        """Tokens or steps, and which of them are real."""
        return self.inputs, self.valid


@dataclass(frozen=True, slots=True)
class ImageBatch(Batch):
    """Labelled images, normalised. `target` holds class indices, or the weights of the classes of mixed images."""

    images: Float[Tensor, "b c h w"]
    target: Int[Tensor, " b"] | Float[Tensor, "b classes"]

    @property
    def network_inputs(self) -> tuple[Tensor]:
        """The images."""
        return (self.images,)


@dataclass(frozen=True, slots=True)
class MaskedBatch(Batch):
    """Text of which some tokens are hidden. `target` is the hidden token, and UNMASKED everywhere else."""

    inputs: Int[Tensor, "b n"]
    valid: Bool[Tensor, "b n"] | None
    target: Int[Tensor, "b n"]

    @property
    def weight(self) -> int:
        """Hidden tokens."""
        return int((self.target != UNMASKED).sum())

    @property
    def network_inputs(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """Tokens, which of them are real, and which are to be predicted."""
        return self.inputs, self.valid, self.target != UNMASKED


UNMASKED = -100
"""The target of a token that is not to be predicted, which torch's cross entropy leaves out by default."""


@dataclass(frozen=True, slots=True)
class PairBatch(Batch):
    """Labelled pairs of token sequences, all padded on the right to one length.

    The masks are True at real tokens, or None when no row of their side has padding. `target` holds class indices.
    """

    first: Int[Tensor, "b n"]
    first_valid: Bool[Tensor, "b n"] | None
    second: Int[Tensor, "b n"]
    second_valid: Bool[Tensor, "b n"] | None
    target: Int[Tensor, " b"]

    @property
    def network_inputs(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        """Tokens of both, each with what is real of them."""
        return self.first, self.first_valid, self.second, self.second_valid


@dataclass(frozen=True, slots=True)
class VQABatch(Batch):
    """Questions on images, images and questions padded on the right.

    The masks are True at real tokens. `target` is the soft score of each answer to train on, `scores` what the official
    evaluator gives for it; `answer_type` is 0 yes/no, 1 number, 2 other.
    """

    image: Float[Tensor, "b n c"]
    image_valid: Bool[Tensor, "b n"] | None
    question: Int[Tensor, "b m"] | Float[Tensor, "b m e"]
    question_valid: Bool[Tensor, "b m"] | None
    scores: Float[Tensor, "b classes"]
    answer_type: Int[Tensor, " b"]
    target: Float[Tensor, "b classes"]  # last: to a dataclass, the property of Batch is a default

    @property
    def network_inputs(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        """Tokens of images and of questions, each with what is real of them."""
        return self.image, self.image_valid, self.question, self.question_valid
