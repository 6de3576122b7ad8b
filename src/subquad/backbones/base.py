"""What an encoder is, and an attention that brings its own."""

import abc
import inspect
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Protocol, TypeGuard, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.errors import UserError
from subquad.specs import DataSpec


class Encoder(nn.Module, abc.ABC):
    """Maps inputs `[b, n]` or `[b, n, c]` to `[b, outputs]` in two parts: `features` reads and pools, `head` predicts.

    A subclass sets both attributes. A model that reads several sequences takes the features and has a head of its own.
    """

    head: nn.Module
    feature_dim: int
    """Width of what `features` returns and `head` takes."""

    @abc.abstractmethod
    def features(self, inputs: Tensor, valid: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b f"]:
        """One vector for each row; `valid` is True at real tokens, None where no row has padding."""

    def forward(self, inputs: Tensor, valid: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b outputs"]:
        """Predictions."""
        return self.head(self.features(inputs, valid))


class Pretrainable(abc.ABC):
    """A network that can start from the weights of a network of another kind: another head, another task."""

    @abc.abstractmethod
    def adopted(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """A whole state dict for this network, made of another's. Raises UserError where the two do not fit."""


class Grouped(abc.ABC):
    """A network that gives some of its parameters other settings of the optimiser than the rest."""

    @abc.abstractmethod
    def parameter_groups(self) -> list[dict[str, Any]]:
        """Every parameter once, in groups as torch's optimisers take them: "params", and "lr" or "weight_decay"."""


class AttentionEncoder(Encoder):
    """A mechanism that is a whole encoder, and cannot stand in the place of one attention of another model.

    Its configs/attention/*.yaml says `encoder: ${attention}`: the task's module then takes it in place of the backbone.
    It is made from `spec, dim`, those of `heads, ffn, dropout` that it has a use for, and keys of its own.

    The contract, checked for every such file by tests/backbones/test_encoders.py:
        - padding never changes a prediction; outputs and gradients stay finite when a row is all padding;
        - rows of a batch never see each other;
        - in eval mode a call changes no parameter and no buffer, and is deterministic;
        - the state dict is all there is to remember;
        - sequences up to `spec.max_len` are accepted, longer ones refused.
    """

    complexity: ClassVar[str]
    """Time and memory in n (tokens), for the generated documentation."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__()
        self.max_len = spec.max_len

    def check_length(self, inputs: Tensor) -> None:
        """Raises UserError when a sequence is longer than this encoder was built for."""
        if inputs.shape[1] > self.max_len:
            raise UserError(
                f"{type(self).__name__} was built for at most {self.max_len} tokens and was given {inputs.shape[1]}; "
                "build it with a larger length or shorten the input."
            )


def check_fits(factory: Callable[..., nn.Module], spec: Any) -> None:
    """Raises UserError where a factory makes models of other data than these, or was given what they do not take."""
    given: set[str] = set()
    while isinstance(factory, partial):
        given |= factory.keywords.keys()
        factory = factory.func
    constructor = inspect.getattr_static(factory, "__init__") if isinstance(factory, type) else factory
    wanted = typing.get_type_hints(constructor).get("spec")
    if isinstance(wanted, type) and hasattr(wanted, "what") and not isinstance(spec, wanted):
        raise UserError(
            f"The backbone {factory.__name__} reads {wanted.what} and the data of this task are {spec.what}; leave "
            "backbone= out to get the task's own, or choose another task."
        )
    known = inspect.signature(constructor).parameters
    unknown = [] if any(p.kind is p.VAR_KEYWORD for p in known.values()) else sorted(given - known.keys())
    if unknown:
        raise UserError(
            f"The backbone {factory.__name__} has no {unknown[0]}, which was set for another one; leave backbone= and "
            "recipe= out to get the task's own, or take a recipe made for this backbone."
        )


def is_encoder(factory: object) -> "TypeGuard[EncoderFactory]":
    """Whether a class, or a `functools.partial` of one, makes whole encoders and not attentions of one site."""
    while isinstance(factory, partial):
        factory = factory.func
    return isinstance(factory, type) and issubclass(factory, AttentionEncoder)


def sized(factory: "EncoderFactory", **sizes: Any) -> "EncoderFactory":
    """The factory with those of the sizes that its class takes: not every encoder has heads or a feed-forward net."""
    made: Any = factory
    while isinstance(made, partial):
        made = made.func
    known = {name for cls in made.__mro__ for name in inspect.signature(cls.__init__).parameters}
    return partial(factory, **{name: size for name, size in sizes.items() if name in known})


@runtime_checkable
class EncoderFactory(Protocol):
    """What Hydra's `_partial_` makes of an attention that is an encoder: `functools.partial(BLRPEncoder, dim=64)`."""

    def __call__(self, *, spec: DataSpec, **sizes: Any) -> AttentionEncoder: ...
