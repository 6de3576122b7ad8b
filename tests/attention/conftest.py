"""Makes a test of every mechanism, or of every mechanism in every wiring, out of one function."""

import itertools

import pytest

from attention.cells import Cell, declared, factories, shrunk
from subquad.specs import Pattern


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    found = factories(metafunc.config) if {"cell", "factory"} & {*metafunc.fixturenames} else {}
    if "factory" in metafunc.fixturenames:
        metafunc.parametrize("factory", found.values(), ids=found)
    if "cell" in metafunc.fixturenames:
        cells = {
            f"{name}-{pattern.value}": Cell(shrunk(factory), pattern)
            for (name, factory), pattern in itertools.product(found.items(), Pattern)
            if pattern in declared(factory)
        }
        metafunc.parametrize("cell", cells.values(), ids=cells)
