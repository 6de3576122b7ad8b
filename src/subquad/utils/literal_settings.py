"""Checks constructor arguments that are annotated with `Literal`."""

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ClassVar, Literal, get_args, get_origin

from subquad.utils.errors import UserError


class LiteralSettings:
    """A class whose constructor raises UserError, with the choices, for a value that its `Literal` does not list.

    Subclasses inherit this and need no checks of their own. Sequences and optional values are checked too.
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
    def __init__(self: LiteralSettings, *args: Any, **kwargs: Any) -> None:
        hints = typing.get_type_hints(constructor)
        for name, value in (dict(zip(names, args, strict=False)) | kwargs).items():
            if choices := _violated(hints.get(name), value):
                *others, last = map(str, choices)
                raise UserError(f"{self.section}.{name} is {value}; choose {', '.join(others)} or {last}.")
        constructor(self, *args, **self._arguments(args, kwargs))

    return __init__


def _violated(hint: Any, value: Any) -> tuple[Any, ...]:
    """The choices of a `Literal` in the type hint that the value violates; empty if there is none."""
    members = get_args(hint)
    if get_origin(hint) is Literal:
        return () if value in members else members
    if get_origin(hint) in (typing.Union, types.UnionType) and value is not None:
        violated = [_violated(member, value) for member in members if member is not types.NoneType]
        return violated[0] if all(violated) else ()
    if get_origin(hint) is Sequence and isinstance(value, Sequence):
        return next(filter(None, (_violated(members[0], item) for item in value)), ())
    return ()
