"""scripts/count.py: whole models from the command line, with inputs of a task's longest length."""

import pytest
import torch
from hydra.utils import instantiate
from runs import answer, composed

from subquad.measure.inputs import network_inputs
from subquad.results.measures import operations
from subquad.specs import ImageSpec


def counted(tmp_path, *overrides):
    return answer("scripts/count.py", *overrides, f"paths.data={tmp_path}")


def test_models_side_by_side(tmp_path):
    overrides = ("attention=[softmax,dba]", "task=lra/listops", "scale=smoke")
    done = counted(tmp_path, *overrides)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("total") == 2
    for heading in ("multiplications (M)", "additions (M)", "energy (µJ, 45 nm fp32 model)"):
        assert heading in done.stdout
    assert "softmax, convention everything, forward, 1 row(s)" in done.stdout


def test_without_attention_it_counts_that_of_the_other_overrides(tmp_path):
    done = counted(tmp_path, "experiment=dba/s4_text", "scale=smoke", "data=synthetic")
    assert done.returncode == 0, done.stderr
    assert "s4_dba, convention everything" in done.stdout


def test_the_published_convention_prints_the_papers_numbers(tmp_path):
    overrides = ("attention=ecoformer", "task=imagenet", "backbone=pvt_v2", "convention=published")
    done = counted(tmp_path, *overrides)
    [total] = [line for line in done.stdout.splitlines() if "total" in line]
    assert [part.strip() for part in total.split("│")[2:6]] == ["535.393", "564.786", "0.000", "2,489.261"]
    modules = counted(tmp_path, *overrides, "depth=2").stdout
    assert "model.stages" in modules


@pytest.mark.parametrize(
    "overrides",
    [("task=digits", "backbone=s4d"), ("task=imagenet", "recipe=ecoformer_finetune", "attention=ecoformer")],
)
def test_images_for_sequence_models_and_models_that_start_from_weights(tmp_path, overrides):
    done = counted(tmp_path, *overrides)
    assert done.returncode == 0, done.stderr
    assert "total" in done.stdout


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["precision=fp8"], "precision is fp8; choose int8, int32, fp16, fp32."),
        (["convention=some"], "choose everything or published"),
        (["attention=nonsense"], 'There is no attention "nonsense"'),
        (["attention=softmax", "+attention.fusd=true"], "did you mean attention.fused?"),
        (["task=imagenet", "convention=published", "attention=luna", "scale=smoke"], "no count for Luna"),
    ],
)
def test_wrong_overrides_are_explained(tmp_path, overrides, sentence):
    done = counted(tmp_path, *overrides)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("task", "shapes"),
    [
        ("lra/text", [(2, 4000)]),
        ("lra/retrieval", [(2, 4000), (2, 4000)]),
        ("lra/image", [(2, 1024)]),
        ("cifar/cifar10", [(2, 3, 32, 32)]),
    ],
)
def test_inputs_are_the_longest_of_the_task(data, outputs, task, shapes):
    config = composed(data, outputs, f"task={task}", "scale=paper")
    spec = instantiate(config.data, _convert_="all").spec
    with torch.device("meta"):
        network = instantiate(config.task.module.backbone, _convert_="all")(spec=spec)
        inputs = network_inputs(network, spec, 2, "meta")
    assert [tuple(part.shape) for part in inputs if part is not None] == shapes


@pytest.mark.slow
def test_cells_of_tables_can_be_operations():
    overrides, spec = (
        ["attention=ecoformer", "task=imagenet", "backbone=pvt_v2"],
        ImageSpec(side=224, channels=3, classes=1000),
    )
    row = [operations(overrides, spec, count, "published") for count in ("mul", "add", "energy")]
    assert [round(value, 2) for value in row] == [0.54, 0.56, 2.49]
    assert operations(overrides, spec, "other") > 0
