"""Metadata of every mechanism: source, deviations, cost, naive function, tests."""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import CONFIGS, names

from subquad.attention.base import Attention
from subquad.backbones.encoder import class_of

TESTS = Path(__file__).parents[1]
URL = re.compile(r"https?://\w")


def stem(factory: Callable[..., Attention]) -> str:
    """The name of the mechanism's module."""
    return class_of(factory).__module__.rpartition(".")[2]


def test_docstring_speaks_of_the_released_code(factory: Callable[..., Attention]) -> None:
    paragraphs = (inspect.getdoc(class_of(factory)) or "").split("\n\n")
    assert [p for p in paragraphs if re.match(r"Released code: \S", p)], "no paragraph `Released code: ...`"


def test_complexity_is_stated(factory: Callable[..., Attention]) -> None:
    assert re.match(r"time O\(.+\).*[,;] memory O\(.+\)", class_of(factory).complexity)


def test_module_names_its_source(factory: Callable[..., Attention]) -> None:
    assert URL.search(sys.modules[class_of(factory).__module__].__doc__ or ""), "no address of the paper at the top"


@pytest.mark.parametrize("name", names("attention"))
def test_config_names_its_source(name: str) -> None:
    lines = (CONFIGS / "attention" / f"{name}.yaml").read_text().splitlines()
    comment = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    what, source = comment[0], "\n".join(comment).partition("Source:")[2]
    assert len(what) > 10
    assert URL.search(source), "no `Source:` with an address above the first key"


def test_mechanism_has_a_naive_function_and_tests(factory: Callable[..., Attention]) -> None:
    """At the top of its own file, or in tests/reference."""
    test = TESTS / f"attention/test_{stem(factory)}.py"
    assert test.is_file(), f"no {test.name}"
    naive = [name for name in vars(sys.modules[class_of(factory).__module__]) if name.startswith("naive_")]
    assert naive or (TESTS / f"reference/{stem(factory)}.py").is_file(), "no function naive_..., and no reference"
    assert not naive or "naive" in test.read_text(), "the test does not use the naive function"
