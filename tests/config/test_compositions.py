"""Compositions are cached for the next command until something that they depend on changes."""

import json
import shutil
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from subquad.config import choices, compose, compositions
from subquad.config.compositions import Composition, Compositions
from subquad.config.fingerprint import identity
from subquad.utils import spread
from subquad.utils.errors import UserError

OVERRIDES = ("task=digits", "attention=dba", "scale=smoke")


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path))
    return tmp_path


@pytest.fixture
def counted(monkeypatch):
    """The overrides of every composition."""
    composed, of = [], Composition.of
    monkeypatch.setattr(Composition, "of", lambda overrides: (composed.append(overrides), of(overrides))[1])
    return composed


def kept(overrides=OVERRIDES):
    index = Compositions()
    composition = index[overrides]
    index.save()
    return composition


def test_a_composition_is_what_train_py_would_run(outputs):
    composition, config = kept(), compose.compose_run(OVERRIDES)
    assert f"{composition.folder}-s0" == config.paths.run
    assert composition.outputs == str(outputs)
    assert composition.attention == "dba"
    assert composition.identity == identity(config)
    assert composition.data == OmegaConf.to_container(config.data, resolve=True)
    assert composition.module == OmegaConf.to_container(config.task.module, resolve=True)


@pytest.mark.parametrize(
    ("overrides", "apart"),
    [
        ("experiment=primal_dual/uea task=uea/libras attention=attention_bn", True),  # its beta depends on both
        ("task=lra/listops attention=luna attention.l=3 backbone.embed_norm=false", True),
        ("task=digits attention=dba attention.d_p=3 attention@exact=linformer", True),
        ("task=digits attention=softmax attention=dba", False),
        ("task=digits attention=glob(dba)", False),
        ("task=digits attention=dba backbone.attention=null", False),
        ("task=digits attention=dba attention.d_p=${paths.root}", False),
        ("task=digits attention=dba optimizer.lr=${oc.select:attention.d_p,3}", False),
        ("task=digits attention=dba task.name=${hydra:runtime.choices.attention}", False),
        ("task=digits attention=dba +data.note=${mechanism:}", False),
        ("task=digits attention=dba optimizer.lr=${oc.select:'attention.lr',1.0} +attention.lr=4", False),
        ("experiment=dba/vqa attention=linformer", False),  # it sets attention.k
    ],
)
def test_an_attention_is_put_into_a_composition_of_the_rest_where_it_is_no_more_than_a_value(
    outputs, overrides, apart, monkeypatch
):
    made, put = [], compositions._with_attention
    monkeypatch.setattr(compositions, "_with_attention", lambda *parts: made.append(put(*parts)) or made[-1])
    together = Composition.of_config(compose.compose_run([*overrides.split(), "seed=0"]))
    assert Composition.of(overrides.split()) == together
    assert (made == [together]) == apart


def test_files_of_the_user_are_composed_with_the_attention(outputs, tmp_path, monkeypatch):
    (tmp_path / "own" / "backbone").mkdir(parents=True)
    wrapped = "defaults: [sequence, _self_]\nattention: {_target_: mine.Wrapped, inner: '${attention}'}\n"
    (tmp_path / "own" / "backbone" / "wrapping.yaml").write_text(wrapped)
    monkeypatch.setenv(choices.OWN, str(tmp_path / "own"))
    overrides = ["task=digits", "attention=softmax", "backbone=wrapping"]
    together = Composition.of_config(compose.compose_run([*overrides, "seed=0"]))
    assert Composition.of(overrides) == together


def test_the_next_command_composes_nothing(outputs, counted):
    first = kept()
    assert kept() == first
    assert len(counted) == 1


def test_the_order_of_overrides_counts_where_one_sets_a_part_of_another(outputs, counted):
    index = Compositions()
    assert index[OVERRIDES] == index[OVERRIDES[::-1]]
    assert len(counted) == 1
    rates = ("optimizer.lr=0.25", "optimizer.lr=0.5")
    forced = ("optimizer.lr=0.25", "++optimizer.lr=0.5")
    for given, last in ((rates, 0.5), (rates[::-1], 0.25), (forced, 0.5)):
        assert index[(*OVERRIDES, *given)].identity["task"]["module"]["optimizer"]["lr"] == last


@pytest.mark.parametrize("change", ["configs", "new file", "variable", "folder", "code"])
def test_what_a_composition_depends_on_makes_it_anew(outputs, counted, change, tmp_path, monkeypatch):
    edited = tmp_path / "configs"
    shutil.copytree(choices.CONFIGS, edited)
    monkeypatch.setattr(choices, "CONFIGS", edited)
    folder = kept().folder
    if change == "configs":
        file = edited / "attention" / "dba.yaml"
        file.write_text(file.read_text().replace("d_p: 16", "d_p: 8"))
    elif change == "new file":  # scale/smoke/digits.yaml is optional
        (edited / "scale" / "smoke").mkdir(parents=True, exist_ok=True)
        (edited / "scale" / "smoke" / "digits.yaml").write_text("# @package _global_\nrecipe: {batch_size: 3}\n")
    elif change == "variable":
        monkeypatch.setenv("SUBQUAD_DATA", str(tmp_path / "elsewhere"))
    elif change == "folder":
        monkeypatch.chdir(tmp_path)
    else:
        code = tmp_path / "identity.py"
        code.write_text("")
        monkeypatch.setattr(compositions, "__file__", str(code))
    assert (kept().folder != folder) == (change in ("configs", "new file"))
    assert len(counted) == 2


def test_a_table_changes_no_composition(outputs, counted, tmp_path, monkeypatch):
    edited = tmp_path / "configs"
    shutil.copytree(choices.CONFIGS, edited)
    monkeypatch.setattr(choices, "CONFIGS", edited)
    kept()
    (edited / "table" / "new.yaml").write_text("title: New")
    kept()
    assert len(counted) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": 1}', '{"compositions": {"a": {}}}'])
def test_a_damaged_file_costs_time_and_no_more(outputs, text):
    (outputs / "compositions.json").write_text(text)
    assert kept() == Composition.of(OVERRIDES)
    assert Compositions()._cache.compositions


def test_a_disk_that_takes_nothing_costs_time_and_no_more(outputs, monkeypatch):
    (outputs / "file").write_text("")
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(outputs / "file" / "outputs"))
    assert kept().attention == "dba"


def test_many_are_composed_by_several_processes_as_by_one(outputs, monkeypatch):
    monkeypatch.setattr(spread, "_CALLS_PER_PROCESS", 1)
    monkeypatch.setattr(spread, "usable_cores", lambda: 2)
    monkeypatch.setattr(spread.threading, "active_count", lambda: 1)
    every = [(*OVERRIDES, f"attention.d_p={width}") for width in (3, 4, 5)]
    together = Compositions().all([*every, every[0]])
    assert together == [Composition.of(overrides) for overrides in (*every, every[0])]
    assert len({composition.folder for composition in together}) == 3
    with pytest.raises(UserError, match='There is no attention "dbaa"'):
        Compositions().all([*every, ("attention=dbaa",)])


def test_a_run_that_starts_from_a_file_is_composed_each_time(outputs):
    """The file may change, and with it the identity of the run."""
    weights = outputs / "weights.ckpt"
    of_file, of_run = (
        (*OVERRIDES, f"ckpt_path={path}") for path in (weights, outputs / "0123456789ab-s0/checkpoints/best.ckpt")
    )
    weights.write_bytes(b"a")
    first = kept(of_file)
    kept(of_run)
    of_pretrained = ("task=cifar/cifar10", "backbone=vit", f"backbone.pretrained={weights}")
    pretrained = kept(of_pretrained)
    weights.write_bytes(b"bc")
    assert kept(of_file).folder != first.folder
    assert kept(of_pretrained).folder != pretrained.folder
    assert [json.loads(key) for key in Compositions()._cache.compositions] == [sorted(of_run)]


def test_a_variable_that_a_file_of_the_user_reads_is_part_of_a_composition(outputs, tmp_path, monkeypatch):
    (tmp_path / "own" / "attention").mkdir(parents=True)
    (tmp_path / "own" / "attention" / "narrow.yaml").write_text("defaults: [dba]\nd_p: ${oc.decode:${oc.env:WIDTH}}\n")
    monkeypatch.setenv(choices.OWN, str(tmp_path / "own"))
    folders = set()
    for width in "345":
        monkeypatch.setenv("WIDTH", width)
        monkeypatch.setattr("subquad.config.fingerprint._KNOWN", {})  # another process
        folders.add(kept(("task=digits", "attention=narrow", "scale=smoke")).folder)
    assert len(folders) == 3


def test_sizes_of_models_are_kept_until_code_changes(outputs, tmp_path, monkeypatch):
    index = Compositions()
    index.parameters["family"] = 7
    index.optimizer_states["adam"] = 2
    index.save()
    assert (Compositions().parameters, Compositions().optimizer_states) == ({"family": 7}, {"adam": 2})
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "new.py").write_text("x = 1")
    monkeypatch.setattr(compositions.subquad, "__path__", [str(tmp_path / "package")])
    assert (Compositions().parameters, Compositions().optimizer_states) == ({}, {})


@pytest.mark.slow
def test_a_look_for_data_loads_no_training_code():
    program = """
import sys
from subquad.config.compositions import Composition
from subquad.results.missing_data import missing_data
for task in ("uea/epilepsy", "lra/text", "cifar/cifar10", "vqa_v2", "glue/sst2"):
    missing_data(Composition.of([f"task={task}"]).data)
heavy = ("pytorch_lightning", "torchmetrics", "transformers", "wandb", "subquad.tasks", "subquad.backbones")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
