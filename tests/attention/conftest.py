"""Makes a test of every mechanism, or of every mechanism in every wiring, out of one function."""

import itertools

import pytest

from attention.cells import Cell, declared, factories, first_of_each_class, shrunk
from subquad.specs import Pattern


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`factory`: every choice; `cell`: every choice in every wiring; `first_cell`: one choice of each class."""
    for fixture in ("factory", "cell", "first_cell"):
        if fixture not in metafunc.fixturenames:
            continue
        found = factories(metafunc.config)
        if fixture == "factory":
            metafunc.parametrize(fixture, found.values(), ids=found)
            continue
        if fixture == "first_cell":
            found = first_of_each_class(found)
        cells = {
            f"{name}-{pattern.value}": Cell(shrunk(factory), pattern)
            for (name, factory), pattern in itertools.product(found.items(), Pattern)
            if pattern in declared(factory)
        }
        metafunc.parametrize(fixture, cells.values(), ids=cells)
