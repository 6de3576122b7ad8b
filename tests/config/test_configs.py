"""Every file of configs/ composes, and its targets exist and accept its arguments."""

import importlib
import inspect
import pkgutil
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import CONFIGS, encoders
from conftest import node as choice_of
from hydra.utils import get_class, get_method
from omegaconf import OmegaConf
from runs import composed

import subquad.attention
import subquad.backbones
import subquad.data
from subquad.attention.base import Attention
from subquad.backbones.encoder import StandaloneEncoder
from subquad.cli.command import bench_config
from subquad.config.choices import options
from subquad.config.compose import compose_run
from subquad.config.validate import checked_overrides
from subquad.data.split_data import SplitData
from subquad.utils.errors import UserError

FILES = sorted(CONFIGS.rglob("*.yaml"))
TASKS = options("task")
LEAVES = [name for family in ("uea/", "tser/") for name in [task for task in TASKS if task.startswith(family)][1:]]
"""Tasks that differ from the first of their family only in sizes and texts."""
OWN_SET = ("data.dataset=Mine", "data.folder=/mine")


def compose(*overrides: str) -> Any:
    # A constant name for the run, because computing its fingerprint takes most of the time of resolving.
    return composed(Path("/data"), Path("/outputs"), "paths.run=/run", *overrides)


@cache  # several tests use each task
def resolved(*overrides: str) -> dict[str, Any]:
    own = OWN_SET if {"task=uea/custom", "task=tser/custom"} & {*overrides} else ()
    config = OmegaConf.to_container(compose(*overrides, *own), resolve=True, throw_on_missing=True)
    assert isinstance(config, dict)
    return config


def targets(node: Any, where: str = "") -> dict[str, dict[str, Any]]:
    """The nodes with a _target_ by path."""
    nodes = {where: node} if isinstance(node, dict) and "_target_" in node else {}
    if isinstance(node, dict):
        for key, value in node.items():
            nodes |= targets(value, f"{where}.{key}".lstrip("."))
    return nodes


def assert_callable(where: str, node: dict[str, Any]) -> None:
    """The target exists and accepts these arguments; the code may add missing arguments of a partial target."""
    target = get_method(node["_target_"]) if "." in node["_target_"] else None
    assert callable(target), f"{where}: {node['_target_']}"
    arguments = {key: value for key, value in node.items() if not key.startswith("_")}
    signature = inspect.signature(target)
    try:
        (signature.bind_partial if node.get("_partial_") else signature.bind)(**arguments)
    except TypeError as error:
        raise AssertionError(f"{where}: {error}") from error


def test_every_file_says_what_it_is():
    for path in FILES:
        text = path.read_text().removeprefix("# @package _global_\n")
        assert re.match(r"# \S.{10,}\n", text) or "\nabout:\n  what:" in f"\n{text}", f"{path} does not say what it is"
        assert path.read_text().endswith("\n"), path


@pytest.mark.parametrize("task", TASKS)
def test_every_task_composes_and_what_it_names_takes_its_arguments(task):
    config = resolved(f"task={task}")
    assert config["task"]["name"] == task
    for where, node in targets(config).items():
        assert_callable(where, node)
    assert config["task"]["monitor"].startswith("val/")
    assert config["task"]["mode"] == ("min" if config["task"]["monitor"].endswith(("rmse", "perplexity")) else "max")
    assert (config["trainer"]["max_steps"] > 0) != (config["trainer"]["max_epochs"] > 0)


@pytest.mark.parametrize("scale", options("scale"))
@pytest.mark.parametrize("task", ["lra/listops", "uea/japanese_vowels", "tser/tecator"])
def test_every_scale_composes(task, scale):
    assert resolved(f"task={task}", f"scale={scale}")["scale"] == scale


def test_what_smoke_changes_hides_no_width_that_the_heads_do_not_divide():
    for path in [CONFIGS / "scale" / "smoke.yaml", *(CONFIGS / "scale" / "smoke").rglob("*.yaml")]:
        assert not re.search(r"^[^#]*\b((dim|heads|patch):|model: *\w)", path.read_text(), re.MULTILINE), path
    overrides = ("task=cifar/cifar10", "recipe=blrp_images", "attention=softmax")
    small, published = (resolved(*overrides, f"scale={scale}")["backbone"] for scale in ("smoke", "paper"))
    assert small["layers"] < published["layers"]
    assert [small[key] for key in ("dim", "heads", "patch")] == [published[key] for key in ("dim", "heads", "patch")]


@pytest.mark.parametrize("task", options("task"))
def test_smoke_trains_up_to_a_validation(task):
    plain = resolved(f"task={task}", "scale=smoke")
    every, steps = plain["data"].get("steps_per_epoch"), plain["trainer"]["max_steps"]
    assert every is None or steps < 0 or every <= steps  # -1 steps: whole epochs


EVERY_ATTENTION = [("lra/listops", name) for name in options("attention")]


@pytest.mark.parametrize(("task", "attention"), [*EVERY_ATTENTION, ("uea/japanese_vowels", "dba")])
def test_every_attention_composes(task, attention):
    config = resolved(f"task={task}", f"attention={attention}")
    assert config["task"]["module"]["backbone"]["attention"] == config["attention"]
    assert_callable("attention", config["attention"])


@pytest.mark.parametrize("task", ["lra/listops", "uea/japanese_vowels"])
@pytest.mark.parametrize("name", encoders())
def test_every_standalone_backbone_composes(task, name):
    assert_callable("backbone", resolved(f"task={task}", f"backbone={name}")["backbone"])


@pytest.mark.parametrize("task", [name for name in TASKS if name not in LEAVES])
def test_every_task_takes_a_standalone_backbone(task):
    """The widths are those of the task's recipe, if the recipe sets widths."""
    assert set(encoders()) == {"s4", "s4d", "s4_dba", "s5", "tlb", "blrp"}
    config = resolved(f"task={task}", "backbone=tlb")
    model = config["task"]["module"]["backbone"]
    model = model.get("encoder", model)  # the encoder of two towers
    assert model == config["backbone"]
    sizes = config["recipe"].get("model", {})
    assert all(model[key] == sizes[key] for key in ("dim", "heads", "ffn", "dropout") if key in sizes)


def test_the_segment_of_a_recipe_reaches_the_backbone():
    overrides = ("task=lra/listops", "backbone=blrp", "recipe=blrp")
    assert resolved(*overrides)["backbone"]["segment"] == resolved(*overrides)["backbone"]["latents"] == 100
    changed = resolved(*overrides, "recipe.sizes.listops.segment=50", "backbone.latents=7")["backbone"]
    assert (changed["segment"], changed["latents"]) == (50, 7)
    assert resolved("task=lra/listops", "backbone=blrp", "recipe=luna")["backbone"]["segment"] == 100


def test_a_backbone_and_what_it_does_not_read_are_refused_together():
    overrides = ("task=lra/listops", "backbone=blrp")
    assert resolved(*overrides, "backbone.dim=32")["backbone"]["dim"] == 32
    with pytest.raises(UserError, match='no setting "layers" in backbone'):
        compose_run([*overrides, "backbone.layers=3"])
    for word in ("attention=luna", "attention.d_p=3"):
        with pytest.raises(SystemExit, match=f"{word} has no effect on backbone=blrp"):
            _ = compose_run([*overrides, word]).paths.run


@pytest.mark.parametrize("word", ["attention=s4", "attention@exact=tlb", "attention=dba,blrp"])
def test_a_backbone_in_the_place_of_an_attention_is_answered_with_the_new_word(word):
    with pytest.raises(UserError, match=f"choose it as backbone={re.split('[=,]', word)[-1]}"):
        checked_overrides([word])


def test_runs_are_named_after_their_attention_or_a_backbone_without_one():
    for word, folder in (("attention=luna", "luna"), ("backbone=s4_dba", "s4_dba"), ("backbone=mvts", "dba")):
        assert Path(compose_run(["task=uea/basic_motions", word]).paths.run).parent.name == folder


@pytest.mark.parametrize("name", [(group, choice) for group in ("experiment", "debug") for choice in options(group)])
def test_every_experiment_and_debug_setting_composes(name):
    group, choice = name
    config = resolved(f"{group}={choice}")
    for where, node in targets(config).items():
        assert_callable(where, node)


@pytest.mark.parametrize("group", ["optimizer", "scheduler", "logger", "trainer", "protocol"])
def test_every_other_choice_composes(group):
    for choice in options(group):
        for where, node in targets(resolved("task=uea/japanese_vowels", f"{group}={choice}")).items():
            assert_callable(where, node)


@pytest.mark.parametrize("choice", options("backbone"))
def test_every_backbone_takes_what_its_file_gives_it(choice):
    assert_callable(choice, OmegaConf.to_container(choice_of("backbone", choice)))


def listed(recipe: str) -> set[str]:
    return set(OmegaConf.load(CONFIGS / "recipe" / f"{recipe}.yaml").recipe.sizes)


@pytest.mark.parametrize(
    ("task", "recipe"),
    [(task, recipe) for task in ("listops", "retrieval") for recipe in options("recipe") if task in listed(recipe)],
)
def test_every_recipe_of_the_long_range_arena_composes(task, recipe):
    config = resolved(f"task=lra/{task}", f"recipe={recipe}")
    assert config["recipe"]["name"] == recipe
    for where, node in targets(config).items():
        assert_callable(where, node)


def test_the_sizes_of_recipes_belong_to_tasks():
    keys = {OmegaConf.load(CONFIGS / "task" / f"{task}.yaml").task.get("key") for task in TASKS}
    keys |= {"default", "classification", "regression", *TASKS}  # rows for tasks without their own, two by data.kind
    for recipe in options("recipe"):
        assert listed(recipe) <= keys


def concrete(base: type) -> set[type]:
    """All concrete subclasses of a base in the package."""
    classes = set()
    for child in base.__subclasses__():
        classes |= concrete(child) | (set() if inspect.isabstract(child) else {child})
    packages = ("subquad.attention.", "subquad.backbones.", "subquad.data.")  # references of benchmarks are no choices
    return {child for child in classes if child.__module__.startswith(packages)}


def test_every_mechanism_has_a_config():
    for module in pkgutil.iter_modules(subquad.attention.__path__):
        importlib.import_module(f"subquad.attention.{module.name}")
    for module in pkgutil.iter_modules(subquad.backbones.__path__):
        importlib.import_module(f"subquad.backbones.{module.name}")
    nodes = [resolved("task=lra/listops", f"attention={name}")["attention"] for name in options("attention")]
    nodes += [resolved("task=lra/listops", f"backbone={name}")["backbone"] for name in encoders()]
    assert {get_class(node["_target_"]) for node in nodes} == concrete(Attention) | concrete(StandaloneEncoder)


def test_every_family_of_data_has_a_task():
    for module in pkgutil.walk_packages(subquad.data.__path__, "subquad.data."):
        importlib.import_module(module.name)
    used = {resolved(f"task={task}")["data"]["_target_"] for task in TASKS}
    assert used == {f"{family.__module__}.{family.__name__}" for family in concrete(SplitData)}


def test_the_bench_names_attentions_that_exist():
    config = bench_config(["lengths=[64]", "attention=dba,luna"])
    assert config.lengths == [64]
    assert config.attention == ["dba", "luna"]
    assert set(bench_config([]).attention) <= set(options("attention"))


@pytest.mark.parametrize("task", [task for task in TASKS if task.endswith("/custom")])
def test_the_users_own_test_set_selects_nothing_unless_asked_for(task):
    protocols = [resolved(f"task={task}", *more) for more in ((), ("protocol=paper",))]
    assert [(c["protocol"], c["data"]["protocol"]) for c in protocols] == [("clean", "clean"), ("paper", "paper")]


@pytest.mark.parametrize("task", ["uea/lsst", "tser/tecator", "cifar/cifar10", "text/imdb"])
def test_published_data_keep_the_protocol_of_their_papers(task):
    assert resolved(f"task={task}")["protocol"] == "paper"
