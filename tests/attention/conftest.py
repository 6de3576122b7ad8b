"""Runs a test function on every mechanism, on every mechanism in every wiring, or on every setting of every class."""

import itertools
from functools import cache
from typing import Any

import pytest

from attention.cells import Cell, declared, factories, first_of_each_class, settings_of_classes, shrunk
from subquad.specs import Pattern


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrises by fixture name.

    `factory`: every choice; `cell`: every choice in every wiring, slow but for one choice of each class; `first_cell`:
    that one alone; `setting`: every constructor argument of an attention or a backbone that is a setting.
    """
    if "setting" in metafunc.fixturenames:
        settings = settings_of_classes(metafunc.config)
        metafunc.parametrize("setting", settings, ids=[f"{owner.__name__}.{name}" for owner, name in settings])
    if "factory" in metafunc.fixturenames:
        choices = factories(metafunc.config)
        metafunc.parametrize("factory", choices.values(), ids=choices)
    for fixture in {"cell", "first_cell"} & {*metafunc.fixturenames}:
        metafunc.parametrize(fixture, cells(metafunc.config, others=fixture == "cell"))


@cache
def cells(config: pytest.Config, others: bool) -> list[Any]:
    """One choice of each class in every wiring, and the other choices, which are slow."""
    choices = factories(config)
    first = first_of_each_class(choices)
    return [
        pytest.param(
            Cell(shrunk(factory), pattern), id=f"{name}-{pattern.value}",
            marks=[] if name in first else pytest.mark.slow,
        )
        for (name, factory), pattern in itertools.product(choices.items(), Pattern)
        if pattern in declared(factory) and (name in first or others)
    ]  # fmt: skip
