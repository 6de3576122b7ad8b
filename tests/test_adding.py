"""The examples of docs/adding.md work as they are printed: an attention, a data set, a table."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from subquad.config.choices import CONFIGS
from subquad.results.table import load

PAGE = (CONFIGS.parent / "docs" / "adding.md").read_text()


def block(name: str) -> str:
    """What the page says to put into a file: the block after its name."""
    [text] = re.findall(rf"`{re.escape(name)}`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    return text


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(block(name))


def run(line: str, folder: Path, root: Path, *more: str) -> str:
    """A command of the page, typed in a folder, `<subquad>` being the repository."""
    words = shlex.split(line.replace("PYTHONPATH=. ", "").replace("scale=laptop", ""))
    own = {"SUBQUAD_OUTPUTS": str(folder / "o"), "SUBQUAD_DATA": str(folder / "d"), "COLUMNS": "120"}
    path = os.pathsep.join((".", str(root / "src")))
    command = [sys.executable, str(root / words[1].removeprefix("<subquad>/")), *words[2:], *more]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | own | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines(part: str) -> list[str]:
    return re.findall(rf"^(?:PYTHONPATH=\. )?python \S*{part}.*$", PAGE, re.MULTILINE)


@pytest.mark.slow
def test_the_attention_keeps_the_contract_and_trains(tmp_path):
    put(tmp_path, "mean_value.py", "my_configs/attention/mean_value.yaml")
    [check], [train] = lines("check_attention.py attention=mean"), lines("train.py --config-dir my_configs attention=")
    run(check, tmp_path, CONFIGS.parent, "lengths=[64,128]")
    run(train, tmp_path, CONFIGS.parent, "scale=smoke")
    assert list((tmp_path / "o").rglob("result.json"))


@pytest.mark.slow
def test_the_data_set_is_made_and_trained_on(tmp_path):
    put(tmp_path, "parity.py", "my_configs/task/parity.yaml")
    [train] = lines("train.py --config-dir my_configs task=parity")
    run(train, tmp_path, CONFIGS.parent, "scale=smoke", "data.longest=8", "recipe.steps_per_epoch=2")
    [record] = (json.loads(path.read_text()) for path in (tmp_path / "o").rglob("result.json"))
    assert record["task"] == "parity"
    assert record["data_fingerprint"] == "parity-8-2000"
    assert 0.4 < record["baselines"]["majority class"] < 0.6


def test_the_table_is_one(tmp_path):
    put(tmp_path, "configs/table/mine/1.yaml")
    table = load(tmp_path / "configs/table/mine/1.yaml", "mine/1")
    assert [(cell.row, cell.column) for cell in table if cell.trained] == [("Softmax", "Accuracy"), ("DBA", "Accuracy")]
    assert table.cells["DBA", "Accuracy"].printed.spread == 2.5
    assert table.cells["DBA", "Parameters"].printed is None


@pytest.mark.slow
def test_the_table_is_filled(tmp_path):
    copy = tmp_path / "copy"
    for part in ("src", "configs", "scripts"):
        shutil.copytree(CONFIGS.parent / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(CONFIGS.parent / "train.py", copy / "train.py")
    put(copy, "configs/table/mine/1.yaml")
    [line] = lines("reproduce.py table=mine")
    shown = run(line, copy, copy, "scale=smoke")
    assert "mine/1: Parameters and accuracy on BasicMotions" in shown
    assert "(500,000)" in shown
    assert len(list((copy / "o").rglob("result.json"))) == 2
