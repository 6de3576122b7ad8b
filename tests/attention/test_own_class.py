"""`pytest --attention my_package.module:MyClass` runs the contract only, on a class of the user."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import own_attentions

CLASS = """
from subquad.attention.base import StatelessAttention
from subquad.specs import Pattern

class Mine(StatelessAttention):
    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n), memory O(n)"

    def attend(self, x, context, masks):
        return x.cumsum(1) + context.sum((0, 1))
"""


def contract(folder: Path, *options: str) -> str:
    """The output of pytest, called from a folder of the user."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=line", *options]
    tests = Path(__file__).parent
    return subprocess.run(
        [*command, "--rootdir", str(tests.parents[1]), "-c", str(tests.parents[1] / "pyproject.toml"),
         *(str(tests / f"test_{name}.py") for name in ("contract", "export", "ops"))],
        cwd=folder, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip


@pytest.mark.slow
def test_the_contract_runs_on_it_and_finds_its_faults(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CLASS)
    printed = contract(
        tmp_path, "--attention", "mine:Mine", "-k", "invisible or independent or wiring or trace_agrees or every_size"
    )
    assert "test_padding_is_invisible[mine:Mine-self]" in printed
    assert "test_rows_are_independent[mine:Mine-self]" in printed
    assert "2 failed, 4 passed" in printed  # with its exports


def named(name: str, *settings: str) -> dict[str, Any]:
    """What the options of pytest choose."""
    chosen = {"--attention": [name], "--setting": list(settings)}
    return own_attentions(SimpleNamespace(getoption=chosen.__getitem__))


def test_a_wrong_name_is_explained() -> None:
    with pytest.raises(pytest.UsageError, match=r"nowhere.*write it as my_package.my_module:MyAttention"):
        named("nowhere:Mine")


def test_a_class_takes_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needy = CLASS.replace("    def attend", "    def __init__(self, site, k: int):\n        pass\n\n    def attend")
    (tmp_path / "needy.py").write_text(needy)
    monkeypatch.syspath_prepend(tmp_path)
    assert named("needy:Mine", "attention.k=3")["needy:Mine"].keywords["k"] == 3
    with pytest.raises(pytest.UsageError, match=r"attention=needy:Mine needs k; add attention.k=<value>"):
        named("needy:Mine")
