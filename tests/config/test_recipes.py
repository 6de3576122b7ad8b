"""Recipes compared with the tables of their sources, value by value; values are copied from the sources."""

from pathlib import Path
from typing import Any

import pytest
from conftest import CONFIGS
from omegaconf import OmegaConf
from runs import composed

from subquad.config.choices import options

LRA = ["lra/listops", "lra/text", "lra/retrieval", "lra/image", "lra/pathfinder32"]
COLUMNS = "layers dim heads ffn dropout lr decay batch steps warmup"

# Ma et al. 2021, released code and scripts (fairseq-apollo, 2021-11-03); sizes also in DBA, Table 7.
LUNA = """
6 512 8 2048 0.1 1e-4 1e-4  32  5000 1000
4 256 4 1024 0.3 5e-5 1e-4  32 20000 8000
4 128 4  512 0.1 5e-4 1e-4  32 20000 8000
1  64 8  128 0.3 5e-3 0    256 35000 4000
1 128 4  128 0.2 1e-3 0    512 62500 4000
"""
LUNA_MORE = {
    "backbone.tie_layers": [True, False, False, False, False],
    "backbone.head_hidden": [2048, 1024, 512, 128, 256],
    "backbone.pooling": ["cls", "cls", "cls", "cls", "mean"],
    "backbone.attention_dropout": [0.1, 0.3, 0.1, 0.1, 0.1],
    "backbone.init_std": [0.02, 0.02, None, None, None],
    "backbone.order": ["post"] * 5,
    "backbone.embed_norm": [True] * 5,
    "backbone.position": ["learned"] * 5,
    "optimizer.betas": [[0.9, 0.98]] * 5,
    "scheduler._target_": ["subquad.training.schedules.inverse_sqrt"] * 5,
    "trainer.gradient_clip_val": [None] * 5,
    "data.steps_per_epoch": [100, 100, 2000, 175, 250],  # the scripts: 20, 100, 2000, and passes of 176 and 313
    "callbacks.best.monitor": ["val/accuracy"] * 5,
}
# Xiong et al. 2021, LRA/code/lra_config.py: one model for every task.
NYSTROMFORMER = """
2 64 2 128 0.1 1e-4 0  32  5000 1000
2 64 2 128 0.1 1e-4 0  32 20000 8000
2 64 2 128 0.1 1e-4 0  32 30000  800
2 64 2 128 0.1 1e-4 0 256 35000  175
2 64 2 128 0.1 1e-4 0 256 62400  312
"""
NYSTROMFORMER_MORE = {
    "backbone.attention_dropout": [0.1] * 5,
    "backbone.pooling": ["mean"] * 5,
    "backbone.order": ["pre"] * 5,
    "backbone.position": ["learned"] * 5,
    "backbone.head_hidden": [128] * 5,
    "optimizer.betas": [[0.9, 0.999]] * 5,
    "optimizer.eps": [1e-6] * 5,
    "scheduler._target_": ["subquad.training.schedules.one_cycle"] * 5,
    "recipe.steps_per_epoch": [50, 500, 300, 175, 312],
}
# Zhu et al. 2021, lra/run_*.sh: three tasks.
TRANSFORMER_LS = """
2 64 2 128 0   1e-4 0    32  5000 1000
2 64 2 128 0   1e-4 0.01 32 20000 8000
2 64 2 128 0.1 1e-4 0.01 32 30000 8000
"""
TRANSFORMER_LS_MORE = {
    "backbone.attention_dropout": [0.0, 0.0, 0.1],
    "backbone.pooling": ["cls_apart"] * 3,
    "backbone.head_hidden": [128] * 3,
    "optimizer.eps": [1e-6] * 3,
    "recipe.steps_per_epoch": [50, 500, 300],
    "data.max_len": [None, 4096, 4096],
}
# Tay et al. 2021, */configs (cd31e5c). Rates of the first three: 0.05 / sqrt(warm-up). The last row is Path-X.
LRA_OFFICIAL = """
4 512 8 1024 0.1 1.5811e-3 0.1  32   5000 1000
4 256 4 1024 0.1 5.5902e-4 0.1  32  20000 8000
4 128 4  512 0.1 5.5902e-4 0.1  32   5000 8000
1 128 8  128 0.3 5e-4      0   256  35000  175
4  32 4   32 0.2 1e-3      0   512  62400  312
1  32 2   32 0.1 1e-3      0    64 500000 2500
"""
COSINE, ROOT = "subquad.training.schedules.warmup_cosine", "subquad.training.schedules.inverse_sqrt"
LRA_OFFICIAL_MORE = {
    "backbone.attention_dropout": [0.1, 0.1, 0.1, 0.2, 0.1, 0.1],
    "backbone.pooling": ["cls", "cls", "first", "cls", "mean", "mean"],
    "backbone.position": ["sinusoidal"] * 3 + ["learned", "sinusoidal", "learned"],
    "backbone.position_scale": [1.0] * 3 + [0.02, 1.0, 0.02],
    "backbone.token_std": [1.0] * 6,
    "backbone.head_hidden": [1024, 1024, 512, 128, 32, 32],
    "backbone.order": ["pre"] * 6,
    "optimizer.betas": [[0.9, 0.98]] * 6,
    "optimizer.eps": [1e-9] * 6,
    "scheduler._target_": [ROOT] * 3 + [COSINE] * 3,
    "recipe.steps_per_epoch": [50, 100, 100, 175, 312, 2500],
    "trainer.gradient_clip_val": [None] * 5 + [1.0],
    "data.max_len": [None, 1000, 4000, None, None, None],
    "callbacks.best.monitor": [None] * 6,
}
# Wu et al. 2022, Flowformer_LRA: 0.005 / sqrt(warm-up) for the first two.
FLOWFORMER_LRA = """
1 512 2 1024 0.1 1.5811e-4 0.1  32  5000 1000
1 256 4 1024 0.1 5.5902e-5 0.1  32 20000 8000
4 128 4  512 0.1 5.5902e-4 0.1  32  5000 8000
1 128 4  128 0.3 5e-4      0   256 35000  175
1 256 8  256 0.2 1e-4      0   512 62400  312
"""
# Leotescu et al. 2024, Table 2 and Section 4; decay, steps and warm-up are the benchmark's.
BLRP = """
2  64 8 128 0.1 4e-4 0.1 32  5000 1000
2 256 4 256 0.1 4e-4 0.1 24 20000 8000
2 256 4 736 0.1 4e-4 0.1 24 20000 8000
"""
BLRP_MORE = {
    "recipe.size.segment": [100, 10, 100],
    "optimizer.betas": [[0.9, 0.98]] * 3,
    "optimizer.eps": [1e-9] * 3,
    "callbacks.best.monitor": [None] * 3,
}
TABLES = {
    "luna": (LRA, LUNA, LUNA_MORE),
    "nystromformer": (LRA, NYSTROMFORMER, NYSTROMFORMER_MORE),
    "transformer_ls": (LRA[:3], TRANSFORMER_LS, TRANSFORMER_LS_MORE),
    "lra_official": ([*LRA, "lra/pathfinder128"], LRA_OFFICIAL, LRA_OFFICIAL_MORE),
    "flowformer_lra": (LRA, FLOWFORMER_LRA, {}),
    "blrp": (LRA[:3], BLRP, BLRP_MORE),
}
PLACES = {
    "lr": "optimizer.lr", "decay": "optimizer.weight_decay", "batch": "data.batch_size", "steps": "trainer.max_steps",
    "warmup": "scheduler.warmup",
}  # fmt: skip


def read(*overrides: str) -> Any:
    return composed(Path("/data"), Path("/outputs"), "paths.run=/run", *overrides)


def agree(config: Any, expected: dict[str, Any]) -> None:
    """The composed values for all expected keys; None where a key is empty or missing."""
    actual = {place: OmegaConf.select(config, place) for place in expected}
    actual = {k: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for k, v in actual.items()}
    close = {k: pytest.approx(v, rel=1e-4) if isinstance(v, float) else v for k, v in expected.items()}
    assert actual == close


def rows() -> list[tuple[str, str, dict[str, Any]]]:
    cases = []
    for recipe, (tasks, table, more) in TABLES.items():
        lines = table.strip().splitlines()
        assert len(lines) == len(tasks)
        for i, (task, line) in enumerate(zip(tasks, lines, strict=True)):
            values = dict(zip(COLUMNS.split(), map(float, line.split()), strict=True))
            places = {PLACES.get(name, f"backbone.{name}"): value for name, value in values.items()}
            cases.append((recipe, task, places | {place: each[i] for place, each in more.items()}))
    return cases


@pytest.mark.parametrize(("recipe", "task", "expected"), rows(), ids=lambda x: x if isinstance(x, str) else "")
def test_the_long_range_arena_is_trained_as_published(recipe, task, expected):
    agree(read(f"task={task}", f"recipe={recipe}"), expected)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("luna", ("concat_reversed", 1, 512)),
        ("nystromformer", ("nli", 1, 128)),
        ("transformer_ls", ("nli", 1, 128)),
        ("lra_official", ("concat", 2, 512)),
        ("blrp", ("concat", 2, 736)),
    ],
)
def test_retrieval_combines_features_as_published(recipe, expected):
    model = read("task=lra/retrieval", f"recipe={recipe}").task.module.backbone
    assert (model.combine, model.head_layers, model.head_hidden) == expected


# DBA, Table 8, which prints the settings of Zerveas et al., except SpokenArabicDigits (README of their code). TSER: a
# public reproduction of their Table 15.
SERIES = """
uea/ethanol_concentration    1  8  64 256
uea/face_detection           3  8 128 256
uea/handwriting              1  8 128 256
uea/heartbeat                1  8  64 256
uea/japanese_vowels          3  8 128 256
uea/pems_sf                  1  8 128 512
uea/self_regulation_scp1     3  8 128 256
uea/self_regulation_scp2     3  8 128 256
uea/spoken_arabic_digits     3  8  64 256
uea/uwave_gesture_library    3 16 256 256
uea/lsst                     3  8 128 256
tser/appliances_energy       3  8 128 512
tser/benzene_concentration   3  8 128 256
tser/beijing_pm10_quality    3  8  64 256
tser/beijing_pm25_quality    3  8 128 256
tser/live_fuel_moisture_content 3 8 64 256
tser/ieeeppg                 3  8 512 512
tser/tecator                 3  8 128 256
"""


@pytest.mark.parametrize("line", SERIES.strip().splitlines(), ids=lambda line: line.split()[0])
def test_series_are_trained_as_published(line):
    task, *sizes = line.split()
    backbone = dict(zip(("layers", "heads", "dim", "ffn"), map(int, sizes), strict=True))
    batch, epochs = (64, 400) if task.startswith("uea") else (128, 100)
    agree(
        read(f"task={task}", "recipe=mvts"),
        {"data.batch_size": batch, "trainer.max_epochs": epochs, "trainer.check_val_every_n_epoch": 2}
        | {f"backbone.{name}": size for name, size in backbone.items()}
        | {"backbone.dropout": 0.1, "backbone.norm": "batch", "backbone.position": "learned", "optimizer.lr": 1e-3}
        | {"optimizer._target_": "torch.optim.RAdam", "optimizer.betas": [0.9, 0.999], "optimizer.weight_decay": 0.0}
        | {"trainer.gradient_clip_val": 4.0, "scheduler._target_": "subquad.training.schedules.constant"},
    )


# BrightQin/DBA-Time-Series, its scripts: rate, decay of all weights, dropout.
DBA_SERIES = """
ethanol_concentration 1e-3 5e-4 0.15
face_detection        2e-3 2e-4 0.1
handwriting           1e-3 1e-4 0.1
heartbeat             1e-3 1e-4 0.1
japanese_vowels       1e-3 5e-4 0.1
pems_sf               1e-3 5e-5 0.1
self_regulation_scp1  5e-4 0    0.1
self_regulation_scp2  1e-3 0    0.1
spoken_arabic_digits  1e-3 5e-5 0.1
uwave_gesture_library 1e-3 1e-4 0.1
"""


@pytest.mark.parametrize("line", DBA_SERIES.strip().splitlines(), ids=lambda line: line.split()[0])
def test_dba_reads_series_as_its_scripts_do_in_its_printed_sizes(line):
    task, *values = line.split()
    places = ("optimizer.lr", "optimizer.weight_decay", "backbone.dropout")
    expected = dict(zip(places, map(float, values), strict=True))
    config = read("experiment=dba/uea", f"task=uea/{task}")
    agree(
        config,
        expected
        | {"backbone.norm": "layer", "optimizer._target_": "torch.optim.RAdam", "data.batch_size": 64}
        | {"optimizer.decoupled_weight_decay": True, "trainer.max_epochs": 400, "trainer.gradient_clip_val": 4.0},
    )
    assert config.backbone.dim == (128 if task == "spoken_arabic_digits" else read(f"task=uea/{task}").backbone.dim)


def test_the_short_form_of_series_is_a_scale_of_its_own():
    for task in ("japanese_vowels", "basic_motions"):
        expected = {"data.batch_size": 32, "trainer.max_epochs": 100, "trainer.check_val_every_n_epoch": 1}
        agree(read(f"task=uea/{task}", "scale=laptop"), expected | {"data.max_cases": None})


@pytest.mark.parametrize(("task", "epochs"), [("heartbeat", 100), ("pems_sf", 400), ("lsst", 100)])
def test_flowformer_reads_series_as_published(task, epochs):
    sizes = {"layers": 2, "heads": 8, "dim": 512, "ffn": 2048, "norm": "layer", "final_norm": True, "dropout": 0.1}
    agree(
        read(f"task=uea/{task}", "recipe=flowformer"),
        {f"backbone.{name}": value for name, value in sizes.items()}
        | {"data.batch_size": 16, "optimizer.lr": 1e-3, "trainer.max_epochs": epochs, "trainer.gradient_clip_val": 4.0}
        | {"optimizer._target_": "torch.optim.RAdam", "backbone.position": "learned"},
    )


@pytest.mark.parametrize(
    ("experiment", "epochs", "refit"),
    [("cifar100", 300, 300), ("cifar100_twins", 300, 300), ("imagenet", 30, 30), ("imagenet_scratch", 300, 30)],
)
def test_ecoformer_learns_its_hash_anew_as_often_as_the_paper_says(experiment, epochs, refit):
    agree(
        read(f"experiment=ecoformer/{experiment}"),
        {"trainer.max_epochs": epochs, "attention.refit_epochs": refit},
    )
    assert read(f"experiment=ecoformer/{experiment}", "attention=ecoformer_released").attention.refit_epochs is None


@pytest.mark.parametrize(
    ("recipe", "dim", "ffn", "lr", "batch", "parts"),
    [("mcan", 512, 2048, 1e-4, 64, 1), ("mcan_large", 1024, 4096, 7e-5, 64, 2)],
)
def test_questions_on_images_are_trained_as_published(recipe, dim, ffn, lr, batch, parts):
    """Yu et al. 2019, openvqa: warm-up by a quarter of the rate in three epochs, divided by 5 in the 11th and 13th."""
    agree(
        read("task=vqa_v2", f"recipe={recipe}"),
        {"backbone.layers": 6, "backbone.heads": 8, "backbone.dim": dim, "backbone.ffn": ffn, "backbone.dropout": 0.1}
        | {"optimizer.lr": lr, "optimizer.betas": [0.9, 0.98], "optimizer.eps": 1e-9, "optimizer.weight_decay": 0.0}
        | {"data.batch_size": batch, "trainer.accumulate_grad_batches": parts, "trainer.max_epochs": 13}
        | {"trainer.gradient_clip_val": None, "scheduler.warmup": 3, "scheduler.drops": [10, 12]}
        | {"scheduler.gamma": 0.2, "scheduler._target_": "subquad.training.schedules.staircase"},
    )


def test_masked_text_is_trained_as_roberta():
    agree(
        read("task=mlm/text", "data.folder=/text", "recipe=linformer_mlm"),
        {"backbone.layers": 12, "backbone.heads": 12, "backbone.dim": 768, "backbone.ffn": 3072}
        | {"backbone.dropout": 0.1, "backbone.attention_dropout": 0.1, "backbone.order": "post", "data.max_len": 512}
        | {"optimizer.lr": 5e-4, "optimizer.betas": [0.9, 0.98], "optimizer.eps": 1e-6, "optimizer.weight_decay": 0.01}
        | {"data.batch_size": 2048, "scheduler.warmup": 10_000, "trainer.max_steps": 250_000, "data.masked": 0.15}
        | {"trainer.gradient_clip_val": None, "scheduler._target_": "subquad.training.schedules.warmup_linear"},
    )


@pytest.mark.parametrize(
    ("task", "steps", "warmup"),
    [("glue/sst2", 20_935, 1256), ("glue/qnli", 33_112, 1986), ("glue/qqp", 113_272, 28_318), ("text/imdb", 7812, 469)],
)
def test_labels_are_fine_tuned_as_roberta(task, steps, warmup):
    agree(
        read(f"task={task}", "recipe=glue"),
        {"data.batch_size": 32, "optimizer.lr": 1e-5, "optimizer.weight_decay": 0.1, "optimizer.eps": 1e-6}
        | {"optimizer.betas": [0.9, 0.98], "trainer.max_steps": steps, "scheduler.warmup": warmup, "data.max_len": 512}
        | {"backbone.layers": 12, "backbone.heads": 12, "backbone.dim": 768, "backbone.ffn": 3072},
    )


def test_no_recipe_for_sequences_is_without_a_table():
    covered = {*TABLES, "mvts", "dba_series", "flowformer", "mcan", "mcan_large", "linformer_mlm", "glue"}
    covered |= {
        recipe for recipe in options("recipe") if recipe.startswith(("s4_", "s5"))
    }  # tested with their backbone
    assert covered <= set(options("recipe"))
    for recipe in set(options("recipe")) - covered:
        own = OmegaConf.load(CONFIGS / "recipe" / f"{recipe}.yaml").recipe
        sizes = {} if own.get("source") == "ours" else own.get("sizes", {})
        assert not {"listops", "text", "retrieval", "heartbeat", "default", "mlm", "sst2", "vqa_v2"} & set(sizes), (
            recipe
        )
