"""The wheel, installed without the repository, trains, sweeps, fills tables and writes the page of results."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from runs import LITTLE, ROOT, TINY

from subquad import records

pytestmark = pytest.mark.slow

SOURCES = (
    "src",
    "configs",
    "tests",
    "docs/results",
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
)
MOTIONS = ("task=uea/basic_motions", "data=synthetic", "scale=smoke", *TINY)


def execute(*command: str | Path, cwd: Path, status: int = 0, timeout: int = 500) -> str:
    """The output of a program, which must end with this status. It does not inherit settings of the test session."""
    hidden = ("PYTHONPATH", "SUBQUAD_OUTPUTS", "SUBQUAD_DATA", "SUBQUAD_CONFIGS")
    environment = {key: value for key, value in os.environ.items() if key not in hidden} | {"COLUMNS": "120"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=timeout
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The program `subquad` of an environment with the dependencies and a wheel of the source distribution."""
    base = tmp_path_factory.mktemp("installed")
    source, built = base / "source", base / "built"
    source.mkdir()
    (source / "docs").mkdir()
    for name in SOURCES:
        path = ROOT / name
        copied = {"ignore": shutil.ignore_patterns("*.egg-info", "__pycache__")} if path.is_dir() else {}
        (shutil.copytree if path.is_dir() else shutil.copy)(path, source / name, **copied)
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(built)!r})"
    execute(sys.executable, "-c", code, cwd=source)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    [archive] = built.glob("*.tar.gz")
    execute(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", built, archive, cwd=base)
    [wheel] = built.glob("*.whl")
    execute(sys.executable, "-m", "venv", "--without-pip", base / "venv", cwd=base)
    python = base / "venv" / "bin" / "python"
    execute(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=base)
    [packages] = (base / "venv").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python.with_name("subquad")


ANY_NAME = """Müller, lr=0.1 #[a](b){c: d}~&;!<^'" """
"""All signs that Hydra or a shell reads, and a blank at the end."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, installed):
    """An empty folder of any name, in which one run has been trained."""
    folder = tmp_path_factory.mktemp("empty") / ANY_NAME
    folder.mkdir()
    shown = execute(installed, "train", "attention=dba", *MOTIONS, cwd=folder)
    assert "dba on uea/basic_motions, seed 0" in shown
    return folder


def runs(folder: Path) -> set[tuple[str, int]]:
    """The attentions and seeds of the finished runs below a folder."""
    return {(record.attention, record.seed) for record in records.read_all(folder / "outputs" / "runs")}


def test_it_trains_below_the_current_folder(folder):
    assert runs(folder) == {("dba", 0)}
    assert {path.name for path in folder.iterdir()} <= {"data", "outputs"}


def test_the_page_on_own_things_is_true(installed, folder):
    """Every command of docs/adding.md in its order, with less training; the pages of later tests take its cache."""
    lines = re.findall(r"^(?:subquad|python -m pytest) .*$", (ROOT / "docs" / "adding.md").read_text(), re.MULTILINE)
    assert len(lines) == 10
    less = {
        "train": ["scale=smoke", "recipe.steps_per_epoch=2"],
        "reproduce": ["scale=smoke"],
        "check": ["lengths=[64,128]"],
    }
    for line in lines:
        program, name, *words = line.split()
        words = [word for word in words if word != "scale=laptop"]
        if program == "python":
            execute(installed.with_name("python"), name, *words, "-p", "no:cacheprovider", cwd=folder)
        else:
            smaller = [
                word for word in less.get(name, ()) if "task=uea/basic_motions" not in words or "steps" not in word
            ]
            execute(
                installed, name, *words, *smaller, *["columns=[compression]"] * ("table=arena" in words), cwd=folder
            )
    entered = {("mean_value:MeanValue", seed) for seed in (*range(6), 100, 101, 102)}
    assert runs(folder) == {("mean_value", 0), ("softmax", 0), ("dba", 0)} | entered
    assert "your row" in (folder / "outputs" / "report" / "tables" / "arena.html").read_text()
    assert (folder / "outputs" / "report" / "tables" / "mine" / "1.html").exists()
    assert "is no folder" in execute(installed, "plan", "--config-dir", "nowhere", "table=mine/1", cwd=folder, status=1)


def test_it_sweeps_and_trains_by_several_processes(installed, tmp_path):
    execute(installed, "train", "-m", "attention=dba,softmax", *MOTIONS, cwd=tmp_path)
    execute(installed, "train", "seed=1", "attention=softmax", *MOTIONS, "trainer=ddp_cpu", cwd=tmp_path)
    assert runs(tmp_path) == {("dba", 0), ("softmax", 0), ("softmax", 1)}


def test_it_fills_tables_and_writes_the_page(installed, folder):
    overrides = ("table=primal_dual/9", "columns=[BasicMotions]", "rows=[Softmax]", "seeds=[3]", "scale=smoke")
    assert "1 run is to be trained" in execute(installed, "reproduce", *overrides, "data=synthetic", cwd=folder)
    assert ("softmax", 3) in runs(folder)
    assert "linformer/1: Complexity" in execute(installed, "reproduce", "table=linformer/1", "run=false", cwd=folder)
    execute(installed, "report", cwd=folder)
    pages = [(folder / "outputs" / "report" / name).read_text() for name in ("index.html", "tables/linformer/1.html")]
    assert "subquad reproduce table=" in pages[1]
    assert not [page for page in pages if "python scripts/" in page]


def test_a_class_and_a_configuration_of_the_users_own_are_found(installed, tmp_path):
    (tmp_path / "my_configs" / "attention").mkdir(parents=True)
    (tmp_path / "my_configs" / "attention" / "mine.yaml").write_text("_target_: mine.Mine\n_partial_: true\n")
    (tmp_path / "mine.py").write_text("from subquad.attention.softmax import Softmax\n\n\nclass Mine(Softmax): ...\n")
    execute(installed, "train", "--config-dir", "my_configs", "attention=mine", *MOTIONS, cwd=tmp_path)
    assert runs(tmp_path) == {("mine", 0)}


EXACT = r"(0e\+00|\de-0[6-9])"
EXAMPLES = {
    "plain_layer.py": r"DBA: accuracy 0\.(9\d|8[5-9]) after 200 steps",
    "swap_bert.py": rf"logits differ by {EXACT}\n.*-> DBA; moved query, key, value, out.*trained on: accuracy (1|0\.9)",
    "bert_trainer.py": r"-> DBA; .*loss on other texts: 0\.[01]\d\d\n.*loaded: DBA",
    "timm_swap.py": r"32 x 32 pixels: accuracy (1|0\.9).*48 x 48 pixels: accuracy (1|0\.[789])",
    "attn_implementation.py": rf"subquad_softmax differs by {EXACT}\n.*DBA has parameters of its own",
    "own_attention.py": rf"padding changes outputs by {EXACT}\n.*nearby on uea/basic_motions, seed 0",
    "sweep_and_report.py": r"outputs/report/index\.html",
    "records_with_pandas.py": r"uea/basic_motions +smoke +dba .* 2\n.*softmax .* 2\n.*majority class.*epoch",
}
"""What each script prints."""


SHORT = ("plain_layer.py", "swap_bert.py", "own_attention.py", "sweep_and_report.py")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.release] * (name not in SHORT)) for name in EXAMPLES]
)
def test_an_example_runs_by_itself(installed, name, tmp_path, folder):
    """In an empty folder, but for the one that writes the page, which takes the cache of the pages before."""
    place = folder if name == "sweep_and_report.py" else tmp_path
    shutil.copy(ROOT / "examples" / name, place)
    assert re.search(EXAMPLES[name], execute(installed.with_name("python"), name, cwd=place), re.DOTALL)


def test_the_notebook_runs_in_an_empty_folder(installed, tmp_path):
    shutil.copy(ROOT / "examples" / "first_hour.ipynb", tmp_path)
    code = "import nbformat, nbclient; nbclient.execute(nbformat.read('first_hour.ipynb', 4))"
    execute(installed.with_name("python"), "-c", code, cwd=tmp_path)
    assert runs(tmp_path) == {("softmax", 0), ("dba", 0)}


def test_every_example_is_tested_and_listed():
    files = {path.name for path in (ROOT / "examples").iterdir()}
    listed = set(re.findall(r"\(\.\./examples/([^)]+)\)", (ROOT / "docs" / "start.md").read_text()))
    assert files == {*EXAMPLES, "first_hour.ipynb"} == listed


def test_a_class_that_cannot_be_imported_is_a_sentence(installed, tmp_path):
    (tmp_path / "own" / "attention").mkdir(parents=True)
    (tmp_path / "own" / "attention" / "mine.yaml").write_text("_target_: mine.Mine\n_partial_: true\n")
    refused = execute(installed, "train", "--config-dir", "own", "attention=mine", *MOTIONS, cwd=tmp_path, status=1)
    assert "mine.Mine cannot be imported (ModuleNotFoundError" in refused
    assert "Traceback" not in refused


def test_help_and_errors_name_the_installed_commands(installed, tmp_path):
    assert "subquad train attention=dba" in execute(installed, "train", "--help", cwd=tmp_path)
    assert "subquad prepare task=lra/listops" in execute(installed, "prepare", "--help", cwd=tmp_path)


FORKED = """
import json, os, sys
import subquad.report.html.site, subquad.results.collect, subquad.training.evaluation, subquad.training.run
from subquad.cli.__main__ import main

ended = {}
for name, words in json.loads(sys.argv[1]).items():
    if not (process := os.fork()):
        output = os.open(f"../said/{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1), os.dup2(output, 2)
        sys.argv = ["subquad", name, *words]
        sys.exit(main())
    ended[name] = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
print(json.dumps(ended))
"""
"""Runs commands one after another, each in a process of its own, which has the imports."""


@pytest.fixture(scope="module")
def ended(installed, folder):
    """The exit status of each command of LITTLE, and what is then beside the folder of any name."""
    run = min((folder / "outputs" / "runs").rglob(records.RESULT), key=lambda path: path.stat().st_mtime).parent
    commands = {name: [word.format(run=run.relative_to(folder)) for word in words] for name, words in LITTLE.items()}
    (folder.parent / "said").mkdir()
    printed = execute(installed.with_name("python"), "-c", FORKED, json.dumps(commands), cwd=folder, timeout=1500)
    return json.loads(printed.splitlines()[-1]), {path.name for path in folder.parent.iterdir()}


@pytest.mark.parametrize("name", LITTLE)
def test_every_command_runs_in_a_folder_of_any_name(ended, folder, name):
    assert ended[0][name] == 0, (folder.parent / "said" / name).read_text()
    assert ended[1] == {ANY_NAME, "said"}


def test_each_command_is_tried_in_a_folder_of_any_name(installed, tmp_path):
    said = execute(installed, "--help", cwd=tmp_path)
    assert set(re.findall(r"^  (\w+)  ", said, re.MULTILINE)) == {"train", "reproduce", "report", *LITTLE}


def test_the_contract_is_tested_without_the_repository(installed, tmp_path):
    said = execute(installed, "check", "attention=softmax", "lengths=[]", cwd=tmp_path)
    assert "holds  padding is invisible" in said
    assert "holds  an export agrees at every size that it supports" in said
