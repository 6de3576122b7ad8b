"""Runs a test function on every mechanism, on every mechanism in every wiring, or on every setting of every class."""

import itertools

import pytest

from attention.cells import Cell, declared, factories, first_of_each_class, settings_of_classes, shrunk
from subquad.specs import Pattern


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrises by fixture name.

    `factory`: every choice; `cell`: every choice in every wiring; `first_cell`: one choice of each class;
    `setting`: every constructor argument of an attention or a backbone that is a setting.
    """
    if "setting" in metafunc.fixturenames:
        settings = settings_of_classes(metafunc.config)
        metafunc.parametrize("setting", settings, ids=[f"{owner.__name__}.{name}" for owner, name in settings])
    for fixture in ("factory", "cell", "first_cell"):
        if fixture not in metafunc.fixturenames:
            continue
        choices = factories(metafunc.config)
        if fixture == "factory":
            metafunc.parametrize(fixture, choices.values(), ids=choices)
            continue
        if fixture == "first_cell":
            choices = first_of_each_class(choices)
        cells = {
            f"{name}-{pattern.value}": Cell(shrunk(factory), pattern)
            for (name, factory), pattern in itertools.product(choices.items(), Pattern)
            if pattern in declared(factory)
        }
        metafunc.parametrize(fixture, cells.values(), ids=cells)
