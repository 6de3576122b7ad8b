"""The user's own folders of configurations are found by every command, and no name is used twice."""

import os
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from runs import ROOT

from subquad.cli import command
from subquad.config import choices, compose
from subquad.config.choices import options
from subquad.config.compositions import Compositions
from subquad.config.task_metadata import about_task
from subquad.results.cells import load_table
from subquad.utils.errors import UserError

MINE = "_target_: mine.Mine\n_partial_: true\n"
TABLE = """
title: t
source: s
seeds: 1
columns: {A: [task=digits]}
rows: {x: [attention=mine]}
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with an attention, a task and a table of the user; the working folder is beside it."""
    written = {
        "attention/mine": MINE,
        "task/own/motions": "# @package _global_\ndefaults:\n  - /task/uea/basic_motions\ntask: {name: own/motions}\n",
        "task/own/series": "# @package _global_\ndefaults:\n  - /task/uea/custom\ndata: {dataset: A, folder: /a}\n",
        "task/own/from_base": "# @package _global_\ndefaults:\n  - /task/uea/base\ntask: {key: lsst}\n",
        "table/mine/1": TABLE,
        "scale/laptop/own/motions": "# @package _global_\nrecipe: {batch_size: 3}\n",
        "hydra/launcher/ours": "defaults: [slurm]\npartition: ours\n",
        "experiment/own": "# @package _global_\ndefaults: [/experiment/primal_dual/uea]\n",
    }
    for name, text in written.items():
        file = tmp_path / "project" / "my_configs" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    below = tmp_path / "project" / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path / "outputs"))
    monkeypatch.delenv(choices.OWN, raising=False)
    return tmp_path / "project" / "my_configs"


def by_argument(folder, monkeypatch):
    monkeypatch.setenv(choices.OWN, "")
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("sys.argv", ["plan", "table=mine/1", "--config-dir", "../my_configs", "seeds=1"])
    command.find_own_folders()
    assert sys.argv == ["plan", "table=mine/1", "seeds=1"]
    assert str(Path.cwd()) in sys.path


def by_variable(folder, monkeypatch):
    monkeypatch.setenv(choices.OWN, f"../my_configs{os.pathsep}{folder}")


def by_project(folder, monkeypatch):
    (folder.parent / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.subquad]\nconfigs = "my_configs"\n')
    choices._project.cache_clear()
    assert choices.project() == folder.parent


def test_a_file_named_like_a_shipped_folder_hides_nothing(mine, monkeypatch):
    (mine / "task" / "lra.yaml").write_text("# @package _global_\ndefaults: [/task/lra/listops]\n")
    monkeypatch.setenv(choices.OWN, str(mine))
    assert {"lra", "lra/listops", "own/motions"} <= {*choices.options("task")}
    assert "laptop/own/motions" not in choices.options("scale")


@pytest.mark.parametrize("way", [by_argument, by_variable, by_project])
def test_an_own_folder_is_found(mine, monkeypatch, way):
    choices._folders.cache_clear()
    way(mine, monkeypatch)
    assert choices.folders() == (mine, choices.CONFIGS)
    assert {"mine", "dba"} <= {*options("attention")}
    assert "mine/1" in options("table")
    assert "laptop/own/motions" not in options("scale")
    config = compose.compose_run(["attention=mine", "task=own/motions", "scale=laptop"])
    assert (config.attention._target_, config.task.name, config.recipe.batch_size) == ("mine.Mine", "own/motions", 3)
    assert Compositions()[load_table("mine/1").cells["x", "A"].overrides].attention == "mine"
    listed = OmegaConf.create({"all": "${choices:}"}).all.replace(",", " ").split()  # for train.py --help
    assert {"attention=", "mine", "dba", "own/motions", "laptop"} <= {*listed}
    assert not {"table=", "mine/1", "uea/base", "_tuned", "laptop/own/motions"} & {*listed}


def test_shipped_tasks_experiments_and_launchers_can_be_inherited(mine, monkeypatch):
    by_variable(mine, monkeypatch)
    series = compose.compose_run(["task=own/series"])
    assert (series.data.dataset, series.data._target_) == ("A", compose.compose_run(["task=uea/custom"]).data._target_)
    own, shipped = (compose.compose_run([f"experiment={name}", "task=uea/lsst"]) for name in ("own", "primal_dual/uea"))
    assert own == shipped
    for family in ("cifar", "glue", "lra", "tser", "uea"):
        assert choices.file_of("task", f"{family}/base")
        assert f"{family}/base" not in options("task")
    based, shipped = (compose.compose_run([f"task={name}"]) for name in ("own/from_base", "uea/lsst"))
    assert based.task == shipped.task
    compose.compose_run(["hydra/launcher=ours"])
    about = about_task("own/motions")
    assert about["metric"] == "accuracy"
    assert about["train_rows"] == about_task("uea/basic_motions")["train_rows"]


def test_a_misspelt_choice_is_answered_with_the_users_own(mine, monkeypatch):
    by_variable(mine, monkeypatch)
    with pytest.raises(UserError, match='There is no attention "mien"; did you mean mine'):
        compose.compose_run(["attention=mien"])
    with pytest.raises(UserError, match='There is no attention "MINE"; did you mean mine'):
        compose.compose_run(["attention=MINE"])


def test_an_edited_file_of_the_user_is_composed_again(mine, monkeypatch):
    by_variable(mine, monkeypatch)
    overrides = ("task=digits", "attention=mine")

    def kept():
        index = Compositions()
        composition = index[overrides]
        index.save()
        return composition.folder

    first = kept()
    (mine / "attention" / "mine.yaml").write_text(f"{MINE}fused: false\n")
    assert kept() != first


def test_other_programs_of_hydra_search_no_folder_of_subquad(mine, monkeypatch, tmp_path):
    from hydra import compose as compose_with_hydra
    from hydra import initialize_config_dir
    from hydra.errors import MissingConfigException

    by_variable(mine, monkeypatch)
    (tmp_path / "other.yaml").write_text("a: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        assert compose_with_hydra("other").a == 1
        with pytest.raises(MissingConfigException):
            compose_with_hydra("attention/mine")


@pytest.mark.parametrize(
    ("named", "project", "sentence"),
    [
        ("nowhere", None, "nowhere is no folder, and --config-dir or SUBQUAD_CONFIGS names it"),
        (".", None, "holds the working folder with its data and outputs"),
        ("clash", None, "dba.yaml has the name of a file in .*configs; rename it"),
        ("", '[tool.subquad]\nconfigs = "nowhere"\n', r"nowhere is no folder, and .*pyproject\.toml names it"),
        ("", '[tool.subquad]\nconfig = "x"\n', r'takes configs = "<folder>", or a list of folders, only'),
        ("", "[tool.subquad]\nconfigs = [1]\n", r'takes configs = "<folder>", or a list of folders, only'),
        ("", "[tool.subquad", r"pyproject\.toml cannot be read"),
    ],
)
def test_a_wrong_folder_is_refused_in_a_sentence(tmp_path, monkeypatch, named, project, sentence):
    (tmp_path / "clash" / "attention").mkdir(parents=True)
    (tmp_path / "clash" / "attention" / "dba.yaml").write_text(MINE)
    if project is not None:
        (tmp_path / "pyproject.toml").write_text(project)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(choices.OWN, named)
    with pytest.raises(UserError, match=sentence):
        choices.folders()


def test_the_folder_of_subquad_itself_counts_once(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(choices.OWN, str(ROOT / "configs"))
    assert choices.folders() == (choices.CONFIGS,)


@pytest.mark.parametrize("argument", ["--config-dir", "--config-dir="])
def test_an_argument_without_a_folder_is_refused(monkeypatch, argument):
    monkeypatch.setattr("sys.argv", ["plan", argument])
    with pytest.raises(UserError, match="--config-dir names no folder"):
        command.find_own_folders()
