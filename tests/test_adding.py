"""docs/adding.md shows what `subquad new` writes; tests/cli/test_installed.py runs its commands with only the wheel."""

import re
import tomllib

import pytest
import yaml
from runs import ROOT

from subquad.cli import new
from subquad.results.table import load
from subquad.utils import display
from subquad.utils.errors import UserError

PAGE = (ROOT / "docs" / "adding.md").read_text()


def block(name: str) -> str:
    """What the page shows of a file: the block after its name."""
    [text] = re.findall(rf"`{re.escape(name)}`[^`]*:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    return text


def make(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["new", *arguments])
    new.main()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUBQUAD_CONFIGS", raising=False)
    return tmp_path


def test_the_page_shows_what_is_written(folder, monkeypatch):
    (folder / "own").mkdir()
    monkeypatch.setenv("SUBQUAD_CONFIGS", "own")
    for arguments in (("attention", "mean_value"), ("task", "parity"), ("table", "mine/1")):
        make(monkeypatch, *arguments)
    assert (folder / "mean_value.py").read_text() == block("mean_value.py")
    assert (folder / "parity.py").read_text() == block("parity.py")
    for name in ("attention/mean_value", "task/parity", "table/mine/1"):
        assert (folder / "own" / f"{name}.yaml").read_text() == block(f"subquad_configs/{name}.yaml")
    table = load(folder / "own" / "table" / "mine" / "1.yaml", "mine/1")
    assert [(cell.row, cell.column) for cell in table if cell.trained] == [("Softmax", "Accuracy"), ("DBA", "Accuracy")]
    assert table.cells["DBA", "Parameters"].metric.unit == ""
    (folder / "arena.yaml").write_text(block("subquad_configs/table/mine/arena.yaml"))
    assert load(folder / "arena.yaml", "mine/arena").reference == "softmax"


def test_a_folder_is_made_and_entered_in_pyproject(folder, monkeypatch):
    (folder / "pyproject.toml").write_text('[project]\nname = "x"')
    make(monkeypatch, "table", "mine/1")
    entered = tomllib.loads((folder / "pyproject.toml").read_text())
    assert entered == {"project": {"name": "x"}, "tool": {"subquad": {"configs": "subquad_configs"}}}
    assert (folder / "subquad_configs" / "table" / "mine" / "1.yaml").exists()


def test_in_the_repository_files_have_the_places_of_their_kind(folder, monkeypatch, capsys):
    monkeypatch.setattr(display, "CHECKOUT", folder)
    (folder / "src" / "subquad" / "data" / "recall").mkdir(parents=True)
    (folder / "src" / "subquad" / "data" / "recall" / "__init__.py").touch()
    for arguments in (("attention", "mean_value"), ("task", "recall/parity"), ("task", "odd"), ("table", "mine/1")):
        make(monkeypatch, *arguments)
    files = [path for path in folder.rglob("*.*") if path.stat().st_size]
    assert {path.relative_to(folder).as_posix() for path in files} == {
        "src/subquad/attention/mean_value.py", "configs/attention/mean_value.yaml",
        "tests/attention/test_mean_value.py", "src/subquad/data/recall/parity.py", "configs/task/recall/parity.yaml",
        "src/subquad/data/odd.py", "configs/task/odd.yaml", "configs/table/mine/1.yaml",
    }  # fmt: skip
    read = {path.name: path.read_text() for path in files}
    assert "from subquad.attention.mean_value import MeanValue" in read["test_mean_value.py"]
    assert "_target_: subquad.attention.mean_value.MeanValue" in read["mean_value.yaml"]
    assert "_target_: subquad.data.recall.parity.Parity" in read["parity.yaml"]
    assert "_target_: subquad.data.odd.Odd" in read["odd.yaml"]
    assert {"about", "task", "data"} <= yaml.safe_load(read["odd.yaml"]).keys()
    assert "python -m tests.gpu.budgets mean_value --record" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "Say what to write and its name"),
        (("attention", "Mean"), "Mean cannot be the name of a module"),
        (("attention", "dba"), "dba.yaml exists; choose another name"),
        (("attention", "lambda"), "lambda would be no choice, because lambda has a meaning of its own"),
        (("table", "mine/all"), "mine/all would be no choice"),
        (("attention", "torch"), "torch is the name of an installed module"),
        (("task", "there"), "there.py exists; choose another name"),
        (("task", "lra"), "lra is the folder of lra/"),
        (("table", "dba"), "dba is the folder of dba/"),
        (("task", "digits/mine"), "digits is a choice of task=, below which there are no others"),
    ],
)
def test_what_cannot_be_written_is_refused(folder, monkeypatch, arguments, sentence):
    (folder / "there.py").write_text("")
    with pytest.raises(UserError, match=sentence):
        make(monkeypatch, *arguments)
    assert [path.name for path in folder.iterdir()] == ["there.py"]
