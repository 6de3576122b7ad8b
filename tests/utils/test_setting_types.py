"""Types of settings: what they accept, how they are described, and that every class states its ranges."""

import inspect
import pkgutil
import typing
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
from omegaconf import OmegaConf

import subquad.attention
import subquad.backbones
import subquad.data
import subquad.tasks
import subquad.training.callbacks
from subquad.utils.errors import UserError
from subquad.utils.setting_types import (
    BelowOne,
    CheckedSettings,
    Count,
    Even,
    Fraction,
    Natural,
    NonNegative,
    Odd,
    Positive,
    Seed,
    SettingType,
    Share,
    argument_types,
    described,
    shown,
)  # fmt: skip

NUMBERS = [-1, 0, 0.5, 1, 2, 2**31, 2**63 - 1, 2**63, 10**40]
NONSENSE = [None, True, "1", "nan", float("nan"), float("inf"), [1], {"a": 1}, [], "", "ü"]


@pytest.mark.parametrize(
    ("kind", "accepted", "text"),
    [
        (Natural, [0, 1, 2, 2**31, 2**63 - 1], "a whole number from 0"),
        (Count, [1, 2, 2**31, 2**63 - 1], "a whole number from 1"),
        (Odd, [1, 2**63 - 1], "an odd number from 1"),
        (Even, [2, 2**31], "an even number from 2"),
        (Seed, [0, 1, 2, 2**31], "a whole number from 0 to 4294967295"),
        (Positive, [0.5, 1, 2, 2**31, 2**63 - 1, 2**63, 10**40], "a number above 0"),
        (NonNegative, [0, 0.5, 1, 2, 2**31, 2**63 - 1, 2**63, 10**40], "a number from 0"),
        (Fraction, [0, 0.5, 1], "a number from 0 to 1"),
        (BelowOne, [0, 0.5], "a number from 0 up to 1, without 1"),
        (Share, [0.5], "a number between 0 and 1"),
    ],
)
def test_types_accept_their_range_and_nothing_else(kind: Any, accepted: list[float], text: str) -> None:
    known = SettingType(kind)
    assert [value for value in NUMBERS if known.accepts(value)] == accepted
    assert not [value for value in NONSENSE if known.accepts(value)]
    assert known.text == text


def test_combinations() -> None:
    several = SettingType(Count | Sequence[Count] | Literal["auto"] | None)
    assert several.text == "a whole number from 1, a list of (a whole number from 1), auto or null"
    assert all(several.accepts(value) for value in (1, [1, 2], (3,), OmegaConf.create([1]), None, "auto", np.int64(4)))
    assert not any(several.accepts(value) for value in (0, [0], [True], "1", False, 1.0, np.float32(1)))
    assert described(bool) == "true or false"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (1.5, "1.5"), ("word", "word"), ("1", "'1'"), ("", "''"), ("a b", "'a b'"),
     ([1, None], "[1, None]"), ("x" * 300, f"{'x' * 77}...")],
)  # fmt: skip
def test_values_in_messages(value: object, text: str) -> None:
    assert shown(value) == text


def classes() -> list[type[CheckedSettings]]:
    """Every class of the package that checks its settings."""
    for package in (subquad.attention, subquad.backbones, subquad.data, subquad.tasks, subquad.training.callbacks):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            __import__(module.name)
    found, left = [], [CheckedSettings]
    while left:
        found += (children := left.pop().__subclasses__())
        left += children
    return [owner for owner in found if owner.__module__.startswith("subquad.")]


def test_every_integer_has_a_range_and_every_setting_a_check() -> None:
    """A bare `int` would accept -1; a number without a range is one that may be any."""
    for owner in classes():
        if "__init__" not in vars(owner):
            continue
        for name, hint in typing.get_type_hints(inspect.unwrap(vars(owner)["__init__"])).items():
            full = argument_types(owner)[0].get(name)
            if hint is not type(None) and int in (hint, *typing.get_args(hint)):
                assert "whole number" in described(full) or "number from" in described(full), (owner, name)
                assert not SettingType(full).accepts(-1), (owner, name)


def test_a_value_out_of_range_is_refused_by_the_constructor() -> None:
    from subquad.attention.dba import DBA

    for given, said in (({"d_p": 0}, "0"), ({"d_p": True}, "true"), ({"d_p": "16"}, "'16'"), ({"d_p": 2.0}, "2.0")):
        with pytest.raises(UserError, match=rf"^attention\.d_p is {said}; choose a whole number from 1\.$"):
            DBA(dim=8, heads=2, max_len=8, **given)
