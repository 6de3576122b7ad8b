"""Types of settings with their ranges, and the check of constructor arguments against them.

The annotation of an argument is the only place that states its range: the checks, the error messages and the generated
pages read it from there. A value is never converted.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, cached_property, wraps
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, InstanceOf, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from subquad.utils.errors import UserError

_LIMIT = 2**63
"""Integers stay below it, as torch and numpy hold them in 64 bits."""


def _odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("even")
    return value


Natural = Annotated[int, Field(ge=0, lt=_LIMIT, description="a whole number from 0")]
Count = Annotated[int, Field(ge=1, lt=_LIMIT, description="a whole number from 1")]
Odd = Annotated[int, Field(ge=1, lt=_LIMIT, description="an odd number from 1"), AfterValidator(_odd)]
Even = Annotated[int, Field(ge=2, lt=_LIMIT, multiple_of=2, description="an even number from 2")]
Seed = Annotated[int, Field(ge=0, lt=2**32, description=f"a whole number from 0 to {2**32 - 1}")]
"""A seed that numpy, torch and scikit-learn accept."""
Sizes = Annotated[
    Sequence[Count],
    Field(min_length=3, max_length=3, description="three whole numbers from 1: the rows of train, val and test"),
]
Positive = Annotated[float, Field(gt=0, description="a number above 0")]
NonNegative = Annotated[float, Field(ge=0, description="a number from 0")]
Fraction = Annotated[float, Field(ge=0, le=1, description="a number from 0 to 1")]
BelowOne = Annotated[float, Field(ge=0, lt=1, description="a number from 0 up to 1, without 1")]
Share = Annotated[float, Field(gt=0, lt=1, description="a number between 0 and 1")]

_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}
_PASS_ELSEWHERE = ("pytorch_lightning", "torch")
"""Packages whose constructors pass keyword arguments to something other than their parents."""
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)


class CheckedSettings:
    """A class whose constructor raises UserError for an argument outside of the type and range of its annotation.

    The message names the setting, the value and what is allowed. Arguments that are no settings, such as other modules,
    are not checked. Subclasses inherit this and need no checks of their own.
    """

    section: ClassVar[str]
    """Section of the configuration that holds the arguments, for the message."""

    @classmethod
    def _arguments(cls, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments `given` as the constructor takes them; subclasses may accept them in other forms."""
        return given

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            setattr(cls, "__init__", _checked(vars(cls)["__init__"]))  # noqa: B010  mypy refuses the assignment


def _checked(constructor: Callable[..., None]) -> Callable[..., None]:
    """The constructor, preceded by the check of its arguments."""
    names = list(inspect.signature(constructor).parameters)[1:]  # without self

    @wraps(constructor)
    def __init__(self: CheckedSettings, *args: Any, **kwargs: Any) -> None:
        known = setting_types(constructor)
        for name, value in (dict(zip(names, args, strict=False)) | kwargs).items():
            if name in known:
                check(f"{self.section}.{name}", value, known[name])
        constructor(self, *args, **self._arguments(args, kwargs))

    return __init__


@cache
def setting_types(constructor: Callable[..., None]) -> dict[str, "SettingType"]:
    """The types of those arguments that are settings."""
    hints = typing.get_type_hints(constructor, include_extras=True)
    return {name: SettingType(hint) for name, hint in hints.items() if _is_setting(hint)}


class SettingType:
    """A type hint that values can be checked against; `text` describes it in the terms of a configuration."""

    def __init__(self, hint: Any) -> None:
        self.text, self._hint = described(hint), hint

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        if isinstance(self._hint, type) and is_dataclass(self._hint):
            return TypeAdapter(Annotated[self._hint, InstanceOf()])  # type: ignore[arg-type]
        try:
            return TypeAdapter(self._hint, config=_STRICT)
        except PydanticUserError:  # another package's type, which its own constructor checks
            return TypeAdapter(Any)

    def accepts(self, value: Any) -> bool:
        """Whether a value has this type; a number of numpy counts as one of Python, a list as a tuple."""
        plain = _plain(value)
        return self._holds(plain) or (isinstance(plain, list) and self._holds(tuple(plain)))

    def _holds(self, value: Any) -> bool:
        try:
            self._adapter.validate_python(value)
        except ValidationError:
            return False
        return True


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python, and any sequence, such as OmegaConf's, as a list."""
    if isinstance(value, np.generic):
        return value.item()
    return [_plain(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def check(name: str, value: Any, kind: SettingType) -> None:
    """Raises UserError, with the name of the setting and what it accepts, for a value of another type."""
    if not kind.accepts(value):
        raise UserError(f"{name} is {shown(value)}; choose {kind.text}.")


def shown(value: Any) -> str:
    """A value in an error message: words as they are, text that looks like something else in quotes, cut if long."""
    text = str(value) if not isinstance(value, str) or value.replace("/", "").isidentifier() else repr(value)
    text = {"None": "null", "True": "true", "False": "false"}.get(text, text)
    return text if len(text) <= 80 else f"{text[:77]}..."


def argument_types(owner: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """The annotations of a class's or a function's arguments by name, and whether the list is complete.

    Arguments of parents are included where the constructor passes keyword arguments on; the list is incomplete where
    they go to something other than its parents.
    """
    hints: dict[str, Any] = {}
    for function in _signatures(owner):
        arguments = [*inspect.signature(function).parameters.values()]
        named = [p.name for p in arguments if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]
        own = typing.get_type_hints(function, include_extras=True)
        hints = {name: own.get(name, Any) for name in named} | hints
        passes_on = any(p.kind is p.VAR_KEYWORD for p in arguments)
        if not passes_on or getattr(function, "__module__", "").partition(".")[0] in _PASS_ELSEWHERE:
            return hints, not passes_on
    return hints, False


def _signatures(owner: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    if not isinstance(owner, type):
        yield owner
        return
    for parent in owner.__mro__:
        if "__init__" in vars(parent):
            yield vars(parent)["__init__"]


def described(hint: Any) -> str:
    """A type in the terms of configurations: choices, whole number, number, true or false, text, list, null."""
    parts = [*_alternatives(hint)]
    return f"{', '.join(parts[:-1])} or {parts[-1]}" if len(parts) > 1 else parts[0]


def _alternatives(hint: Any) -> Iterator[str]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        known = next((a.description for a in arguments[1:] if isinstance(a, FieldInfo) and a.description), None)
        yield from [known] if known else _alternatives(arguments[0])
    elif origin is Literal:
        yield from (choice if isinstance(choice, str) else shown(choice) for choice in arguments)
    elif origin in (typing.Union, types.UnionType):
        for argument in arguments:
            yield from _alternatives(argument)
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        yield "settings by name"
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        yield f"a list of ({described(arguments[0])})"
    elif hint is bool:
        yield from ("true", "false")
    else:
        yield _NAMES.get(hint, f"{getattr(hint, '__name__', hint)} (a group of its own, or a _target_)")


def _is_setting(hint: Any) -> bool:
    """Whether a type consists of what a configuration can hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _is_setting(arguments[0])
    if origin is Literal or hint in _NAMES:
        return True
    sequence = isinstance(origin, type) and issubclass(origin, Sequence) and origin is not tuple
    return (sequence or origin in (typing.Union, types.UnionType)) and all(map(_is_setting, arguments))
