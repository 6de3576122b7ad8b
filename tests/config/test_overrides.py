"""Paths on the command line and working folders with any name."""

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from subquad.cli.command import script_settings
from subquad.config.compose import compose_run
from subquad.config.overrides import as_override, with_path
from subquad.utils.errors import UserError

NAMES = [
    "Müller, lr=0.1",
    "a=b",
    "#1 [x]",
    "(y), z",
    "it's",
    'say "so"',
    "{k: v}",
    "~home",
    "a&b;c!d<e^f",
    "end ",
    "\\",
]


def test_a_value_that_is_too_long_for_a_path_is_left_as_it_is() -> None:
    override = f"attention={','.join(['softmax'] * 100)}"
    assert with_path(override) == override


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_a_value_and_a_working_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert OverridesParser.create().parse_override(f"key={as_override(name)}").value() == name
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    composed = compose_run(["attention=dba", "task=uea/basic_motions"])
    assert composed.paths.outputs == f"{folder}/outputs"
    other = compose_run([f"paths.outputs={as_override(folder / 'other')}"])
    assert other.paths.outputs == f"{folder}/other"
    assert other.paths.data == f"{folder}/data"
    assert script_settings({"data": None}, [with_path(f"data={folder}")]).data == str(folder)


def test_typed_paths_are_quoted_where_they_exist_and_homes_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/müller")
    (tmp_path / "lr=0.1").mkdir()
    assert with_path(f"run={tmp_path}/lr=0.1") == f"run='{tmp_path}/lr=0.1'"
    assert with_path("run=~/out") == "run='/home/müller/out'"
    for plain in ("attention=softmax,dba", "run=~other", "seed=0", "~key", "-m", f"run={tmp_path}/none=1"):
        assert with_path(plain) == plain


def test_a_value_that_needs_quotes_is_told_so() -> None:
    with pytest.raises(UserError, match="is written in quotes: 'paths\\.data="):
        compose_run(["paths.data=/tmp/lr=0.1"])
