"""Experiments: the composed settings task by task, and the numbers of parameters that papers print."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from runs import composed, trained

from subquad.config.choices import options
from subquad.config.settings import check_settings
from subquad.specs import DataSpec, TextSpec, VQASpec


def read(*overrides: str) -> Any:
    config = composed(Path("/data"), Path("/outputs"), "paths.run=/run", *overrides)
    return OmegaConf.create(OmegaConf.to_container(config, resolve=True))


def built(config: Any, spec: Any) -> torch.nn.Module:
    """The network of a configuration on the meta device."""
    factory = instantiate(config.task.module.backbone, _convert_="all")
    with torch.device("meta"):
        return factory(spec=spec)


# Nguyen et al. 2023, Tables 13 and 12: task, then BN, BN+SH, linear BN, BN+SH, sparse BN, BN+SH.
UEA = """
ethanol_concentration 0.25 0.15 0.15 0.95 0.8 0.2
face_detection        0.6  0.6  0.6  0.6  0.6 0.6
handwriting           0.65 0.25 0.25 0.3  0.3 0.3
heartbeat             0.55 0.85 0.6  0.15 0.4 0.5
japanese_vowels       0.6  0.6  0.6  0.6  0.6 0.6
pems_sf               0.25 0.35 0.35 0.65 0.5 0.6
self_regulation_scp1  0.5  0.85 0.35 0.25 0.1 0.9
self_regulation_scp2  1.2  0.9  0.75 0.15 0.5 0.3
spoken_arabic_digits  0.65 0.6  0.6  0.6  0.6 0.6
uwave_gesture_library 0.1  0.2  0.65 0.55 0.9 0.3
articulary_word_recognition 0.2 0.6
basic_motions               0.1 0.1
epilepsy                    0.3 0.2
ering                       0.1 0.9
finger_movements            1.0 0.3
libras                      0.3 0.7
natops                      1.0 0.4
racket_sports               1.0 0.4
atrial_fibrillation         0.9 0.6
cricket                     0.2 1.0
stand_walk_jump             1.0 0.6
hand_movement_direction     0.5 0.5
lsst                        0.3 0.2
duck_duck_geese             0.6 0.3
motor_imagery               0.2 0.3
"""
TSER = """
appliances_energy        0.4 0.2
benzene_concentration    0.2 0.1
beijing_pm10_quality     0.1 0.5
beijing_pm25_quality     0.1 0.2
live_fuel_moisture_content 0.1 0.3
ieeeppg                  0.4 0.2
"""
LRA = """
listops    0.5 0.2
text       0.5 0.8
retrieval  1.0 1.0
image      0.2 0.2
pathfinder 0.2 0.4
"""
KINDS = ["attention_bn", "attention_bn_sh", "linear_bn", "linear_bn_sh", "sparse_bn", "sparse_bn_sh"]


def test_the_weights_of_the_mean_are_the_printed_ones():
    tuned = read("experiment=primal_dual/uea").tuned.betas
    lines = [line.split() for table in (UEA, TSER, LRA) for line in table.strip().splitlines()]
    assert set(tuned) == set(KINDS)
    for column, kind in enumerate(KINDS):
        printed = {task: float(values[column]) for task, *values in lines if column < len(values)}
        assert OmegaConf.to_container(tuned[kind]) == printed


@pytest.mark.parametrize(
    ("overrides", "beta"),
    [
        (("primal_dual/uea", "task=uea/heartbeat", "attention=attention_bn"), 0.55),
        (("primal_dual/uea", "task=uea/heartbeat", "attention=sparse_bn_sh"), 0.5),
        (("primal_dual/uea", "task=uea/pems_sf", "attention=linear_bn", "recipe=flowformer"), 0.35),
        (("primal_dual/uea", "task=uea/lsst", "attention=linear_sh"), 0.0),
        (("primal_dual/uea", "task=uea/lsst", "attention=softmax"), None),
        (("primal_dual/tser", "task=tser/ieeeppg", "attention=attention_bn_sh"), 0.2),
        (("primal_dual/lra", "task=lra/text", "attention=attention_bn_sh"), 0.8),
        (("primal_dual/lra", "task=lra/pathfinder32", "recipe=nystromformer"), 0.2),
        (("primal_dual/uea", "attention.beta=0.9"), 0.9),
    ],
)
def test_each_task_gets_its_weight_of_the_mean(overrides, beta):
    config = read(f"experiment={overrides[0]}", *overrides[1:])
    assert config.attention.get("beta") == beta
    check_settings("attention", OmegaConf.to_container(config.attention))
    if "uea" in overrides[0]:
        assert config.backbone.heads == 8


def test_a_task_without_a_printed_weight_asks_for_one(data, outputs):
    overrides = ("experiment=primal_dual/uea", "task=uea/lsst", "attention=linear_bn", "data=synthetic", "scale=smoke")
    with pytest.raises(ValueError, match=r"attention\.beta is null; choose a number"):
        trained(composed(data, outputs, *overrides, "trainer=cpu"))
    assert read("attention=linear_bn").attention.beta == 1.0


LONG = ("listops", "text", "retrieval", "image", "pathfinder32")
TASKS = {
    "dba/lra": [f"lra/{task}" for task in LONG],
    "dba/uea": [f"uea/{line.split()[0]}" for line in UEA.strip().splitlines()[:10]],
    "ecoformer/lra": ["lra/text", "lra/retrieval"],
    "primal_dual/uea": [f"uea/{line.split()[0]}" for line in UEA.strip().splitlines()],
    "primal_dual/tser": [f"tser/{line.split()[0]}" for line in TSER.strip().splitlines()],
    "primal_dual/lra": [f"lra/{task}" for task in LONG[:3]],
    "blrp/lra": [f"lra/{task}" for task in LONG[:3]],
    "tlb/lra": [f"lra/{task}" for task in LONG],
    "linformer/glue": ["glue/sst2", "glue/qnli", "glue/qqp", "text/imdb"],
}


@pytest.mark.parametrize("experiment", TASKS)
@pytest.mark.slow
def test_every_task_of_an_experiment_composes(experiment):
    for task in TASKS[experiment]:
        config = read(f"experiment={experiment}", f"task={task}")
        assert config.task.name == task
        for section in ("attention", "backbone", "data"):
            check_settings(section, OmegaConf.to_container(config[section]))


def test_tlb_has_the_sizes_of_its_code():
    sizes_by_task = {}
    for task in TASKS["tlb/lra"]:
        config = read("experiment=tlb/lra", f"task={task}")
        encoder = config.backbone
        sizes = (encoder.latents, encoder.segment, encoder.self_layers, encoder.dim, config.optimizer.lr)
        sizes_by_task[task] = (*sizes, config.data.batch_size, config.trainer.max_steps, config.data.get("max_len"))
    assert sizes_by_task == {
        "lra/listops": (100, 100, 2, 512, pytest.approx(0.0125 / 1000**0.5, rel=1e-4), 32, 5000, None),
        "lra/text": (10, 10, 2, 256, pytest.approx(0.025 / 8000**0.5, rel=1e-4), 32, 20_000, 4000),
        "lra/retrieval": (10, 10, 2, 128, pytest.approx(0.025 / 8000**0.5, rel=1e-4), 128, 20_000, 4000),
        "lra/image": (5, 32, 1, 128, 1e-3, 256, 35_000, None),
        "lra/pathfinder32": (5, 64, 2, 32, 5e-4, 512, 62_400, None),
    }


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        ("dba/vqa", 5_200_344),  # printed 5.2M
        ("dba/vqa_mcan", 44_138_496),  # 44M
        ("dba/vqa_mcan_large", 176_357_376),
        ("dba/vqa_performer", 37_828_608),  # 38M
        ("dba/vqa_linformer", 37_828_608 + 2 * 6 * 2 * 17 * 17),  # printed 39M: docs/deviations.md
    ],
)
def test_parameters_of_questions_on_images(experiment, expected):
    config = read(f"experiment={experiment}")
    sizes = {"image_len": config.data.image_len, "text_len": config.data.text_len}
    network = built(config, VQASpec(**sizes, image_dim=2048, classes=3129, vocab=2))
    assert network.stack_parameters == expected
    assert all(f"{number:,}" in _header(experiment) for number in [expected])


def _header(experiment: str) -> str:
    return (Path(__file__).parents[2] / "configs" / "experiment" / f"{experiment}.yaml").read_text()


def test_parameters_of_blrp():
    """The paper prints 258K; a vocabulary of 17 and the biases of Φ, which have no effect, give 257,546."""
    config = read("experiment=blrp/lra", "backbone.phi_bias=true")
    printed = built(config, DataSpec(max_len=2000, vocab=17, classes=10))
    assert sum(p.numel() for p in printed.parameters()) == 257_546


SHARED = [("linformer_none", 288), ("linformer", 24), ("linformer_kv", 12), ("linformer_layer", 1)]


@pytest.mark.parametrize(("attention", "matrices"), SHARED)
@pytest.mark.parametrize(("experiment", "n", "k"), [("512_128", 512, 128), ("512_256", 512, 256)])
def test_matrices_of_linformer_in_twelve_layers_of_twelve_heads(experiment, n, k, attention, matrices):
    """Section 4 of the paper: n k weights each, thus 18.9M, 1.57M, 0.79M and 65,536 at n = 512 and k = 128."""
    config = read(f"experiment=linformer/mlm_{experiment}", "data.folder=/text", f"attention={attention}")
    assert (config.data.max_len, config.attention.k) == (n, k)
    network = built(config, TextSpec(max_len=n, vocab=300, tokenizer="ab"))
    plain = built(read("task=mlm/text", "attention=softmax"), TextSpec(max_len=n, vocab=300, tokenizer="ab"))
    named = network.named_parameters(remove_duplicate=False)
    maps = {id(p): p for name, p in named if ".key_map." in name or ".value_map." in name}
    assert len(maps) == matrices
    assert all(p.shape == (k, n) for p in maps.values())
    extra = sum(p.numel() for p in network.parameters()) - sum(p.numel() for p in plain.parameters())
    assert extra == matrices * n * k


def test_softmax_is_a_row_of_linformers_tables():
    """The setting of k for every Linformer has no effect on other mechanisms."""
    for experiment in ("mlm_512_128", "glue"):
        config = read(f"experiment=linformer/{experiment}", "data.tokenizer=/t", "attention=softmax")
        check_settings("attention", OmegaConf.to_container(config.attention))
    assert read("experiment=linformer/mlm_1024_256", "attention=linformer_kv").attention.k == 256
    assert read("attention=linformer").attention.k == 256


PAIRS = [
    ("attention=softmax", "luna"), ("attention=dba", "luna"), ("attention=luna", "luna"),
    ("attention=linformer", "nystromformer"), ("backbone=blrp", "blrp"), ("backbone=tlb", "lra_official"),
    ("attention=transformer_ls", "transformer_ls"), ("attention=softmax", "lra_official"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "recipe"),
    [pytest.param(*pair, marks=[pytest.mark.slow] * (place > 2)) for place, pair in enumerate(PAIRS)],
)
def test_pairs_of_texts_are_trained(data, outputs, choice, recipe):
    words = ("task=lra/retrieval", "data=synthetic", "scale=smoke", "trainer=cpu", "data.max_len=40")
    small = ("backbone.dim=16", "backbone.heads=2", "backbone.ffn=16")
    record = trained(composed(data, outputs, *words, *small, choice, f"recipe={recipe}"))
    assert 0 <= record.metrics["test/accuracy"] <= 1
    assert record.steps == 4


def test_no_experiment_is_left_out():
    single = {"tlb/listops"}
    counted = {"dba/vqa", "dba/vqa_mcan", "dba/vqa_mcan_large", "dba/vqa_performer", "dba/vqa_linformer"}
    text = {f"linformer/mlm_{sizes}" for sizes in ("512_128", "512_256", "1024_256", "2048_256", "4096_256")}
    known = single | counted | text | set(TASKS)
    images = ("cifar", "imagenet")
    experiments = {name for name in options("experiment") if not name.split("/")[1].startswith(images)}
    assert {name for name in experiments if "s4" not in name} == known
