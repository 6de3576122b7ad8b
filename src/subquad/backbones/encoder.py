"""Base classes of the models that read sequences, and checks of their settings."""

import abc
import inspect
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Protocol, TypeGuard, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from subquad.specs import DataSpec, Mask
from subquad.utils.errors import UserError
from subquad.utils.setting_types import CheckedSettings


class Encoder(nn.Module, CheckedSettings, abc.ABC):
    """Maps inputs `[b, n]` or `[b, n, c]` to `[b, outputs]` in two parts: `features` reads and pools, `head` predicts.

    A subclass sets `head` and `feature_dim`. A model that reads several sequences uses `features` and its own head.
    """

    section = "backbone"

    head: nn.Module
    feature_dim: int
    """Width of what `features` returns and `head` takes."""

    @abc.abstractmethod
    def features(self, inputs: Tensor, valid: Mask) -> Float[Tensor, "b f"]:
        """One vector for each row; `valid` is True at real tokens, None where no row has padding."""

    def forward(self, inputs: Tensor, valid: Mask) -> Float[Tensor, "b outputs"]:
        """Predictions."""
        return self.head(self.features(inputs, valid))


class Pretrainable(abc.ABC):
    """A network that can start from the weights of another network, such as one with another head."""

    @abc.abstractmethod
    def adapt_state_dict(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns a complete state dict for this network. Raises UserError where the weights do not fit."""


class StandaloneEncoder(Encoder):
    """An encoder with a mechanism of its own (S4, TLB, BLRP): `attention=` has no place in it.

    Its constructor takes `spec`, `dim`, `heads`, `ffn` and `dropout` if it uses them, and settings of its own.

    The contract, which tests/backbones/test_encoders.py checks for every configs/backbone/*.yaml without `attention:`:
        - padding never changes a prediction; outputs and gradients stay finite when a row is all padding;
        - the rows of a batch are independent;
        - in eval mode a call is deterministic and changes no parameter and no buffer;
        - the state dict is the complete state;
        - sequences up to `spec.max_len` are accepted, longer ones raise UserError.
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


def class_of(factory: Any) -> Any:
    """The class, or function, behind a factory: a `functools.partial` of it, or a wrapper."""
    owner: Any = inspect.unwrap(factory)
    while isinstance(owner, partial):
        owner = owner.func
    return owner


def check_fits(factory: Callable[..., nn.Module], spec: Any) -> None:
    """Raises UserError if a backbone does not read this kind of data (its `spec` argument has another type)."""
    factory = class_of(factory)
    constructor = inspect.getattr_static(factory, "__init__") if isinstance(factory, type) else factory
    wanted = typing.get_type_hints(constructor).get("spec")
    if isinstance(wanted, type) and hasattr(wanted, "what") and not isinstance(spec, wanted):
        raise UserError(
            f"The backbone {factory.__name__} reads {wanted.what} and the data of this task are {spec.what}; leave "
            "backbone= out to get the task's own, or choose another task."
        )


def is_standalone(factory: object) -> "TypeGuard[EncoderFactory]":
    """Whether a class, or a `functools.partial` of one, makes a `StandaloneEncoder`."""
    owner = class_of(factory)
    return isinstance(owner, type) and issubclass(owner, StandaloneEncoder)


def sized(factory: "EncoderFactory", **sizes: Any) -> "EncoderFactory":
    """The factory with the sizes that its class accepts: not every encoder has heads or a feed-forward net."""
    known = {name for cls in class_of(factory).__mro__ for name in inspect.signature(cls.__init__).parameters}
    return partial(factory, **{name: size for name, size in sizes.items() if name in known})


@runtime_checkable
class EncoderFactory(Protocol):
    """Builds a standalone encoder, such as `functools.partial(BLRPEncoder, dim=64)`; Hydra's `_partial_` makes it."""

    def __call__(self, *, spec: DataSpec, **sizes: Any) -> StandaloneEncoder: ...
