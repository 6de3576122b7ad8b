"""Conflicting settings of the trainer, and the trainer configurations."""

import re
from pathlib import Path

import pytest
import torch
from conftest import names
from hydra.utils import instantiate
from runs import ROOT, TINY, composed, one_thread, trained, weights

from subquad import records
from subquad.config.compose import compose_run
from subquad.data import split_data
from subquad.data.batches import EvalBatches
from subquad.training import distributed
from subquad.training.evaluation import evaluate
from subquad.training.strategies import FullySharded, SharedBatches
from subquad.utils.errors import UserError

MOTIONS = ("task=uea/basic_motions", "attention=softmax", "scale=smoke", *TINY)


@pytest.mark.parametrize(
    ("overrides", "cause"),
    [
        (["trainer.precision=16-mixed"], "A CPU cannot train with trainer.precision=16-mixed; choose bf16-mixed"),
        (["trainer.precision=bf16-true"], "Weights are trained in float32, not in trainer.precision=bf16-true"),
        (["trainer.devices=2"], "There are 2 processes but no strategy for them; choose trainer=ddp"),
        (
            ["trainer=ddp_cpu", "trainer.devices=3"],
            "A batch of 4 cannot be divided among 3 processes with 1 microbatch",
        ),
        (["trainer.accumulate_grad_batches=3"], "A batch of 4 cannot be divided among 1 processes with 3 microbatch"),
        (["trainer.accumulate_grad_batches=many"], "it must be a whole number of at least 1, auto, or a size such as"),
        (
            ["trainer.accumulate_grad_batches=0.001MB"],
            "with its layers recomputed and 4 rows at a time, and there are 1 kB",
        ),
        (["trainer=ddp_cpu", "+trainer.sync_batchnorm=true"], "leave trainer.sync_batchnorm out"),
        (["+trainer.deterministic=true"], "Deterministic kernels are selected by runtime.deterministic=true; leave"),
        (["compile_model=max"], "torch.compile has no mode max; set compile_model to true, false or default,"),
        pytest.param(
            ["compile_model=reduce-overhead", "trainer.accumulate_grad_batches=2"],
            "CUDA graphs, which overwrite the gradients of earlier microbatches; set trainer.accumulate_grad_batches=1",
            marks=pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
        ),
        (["runtime.float32_precision=tf32"], "runtime.float32_precision is tf32; choose highest, high, medium or auto"),
        (["runtime.pad_lengths=0"], "runtime.pad_lengths is 0; choose a whole number from 1, auto or null"),
        (["limits.epochs=-1"], "Training has no end: trainer.max_epochs and trainer.max_steps are -1"),
        (["trainer=ddp"], "The trainer cannot be built"),
        (["trainer=fsdp"], "The trainer cannot be built"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_go_together_is_answered_before_anything_starts(data, outputs, overrides, cause):
    if torch.cuda.is_available() and overrides in (["trainer=ddp"], ["trainer=fsdp"]):
        pytest.skip("there is a GPU")
    config = composed(data, outputs, *MOTIONS, "recipe.batch_size=4", *overrides)
    with pytest.raises(UserError) as caught:
        trained(config)
    assert cause in str(caught.value)
    assert (Path(config.paths.run) / "error.json").exists()


@pytest.mark.parametrize("name", names("trainer"))
def test_every_trainer_composes_with_precision_parts_and_the_rest(data, outputs, name):
    more = ("trainer.precision=bf16-mixed", "trainer.accumulate_grad_batches=2", "checkpoint_activations=true")
    config = composed(data, outputs, *MOTIONS, f"trainer={name}", *more)
    assert config.trainer.precision == "bf16-mixed"
    assert config.trainer.accumulate_grad_batches == 2
    strategy = config.trainer.get("strategy")
    if strategy is not None:
        assert isinstance(instantiate(strategy), SharedBatches | FullySharded)


def test_the_commands_of_the_page_on_training_compose():
    page = (ROOT / "docs" / "training.md").read_text()
    commands = re.findall(r"^(?:python|srun python|torchrun .*?) ?train\.py (?!-m)(.*?)(?: +#.*)?$", page, re.MULTILINE)
    assert len(commands) >= 10
    for command in commands:
        assert compose_run(command.split()).task.name == "lra/listops"


@pytest.mark.slow
def test_half_precision_trains_recomputed_parts(data, outputs):
    more = ("trainer.precision=bf16-mixed", "trainer.accumulate_grad_batches=2", "checkpoint_activations=true")
    config = composed(data, outputs, *MOTIONS, "recipe.batch_size=4", *more)
    plain = composed(data, outputs, *MOTIONS, "recipe.batch_size=4")
    half, full = trained(config), trained(plain)
    assert half.fingerprint != full.fingerprint
    assert half.metrics["train/loss"] != full.metrics["train/loss"]
    assert half.metrics["val/loss"] == pytest.approx(full.metrics["val/loss"], rel=0.1)
    assert {t.dtype for t in weights(Path(config.paths.run)).values() if t.is_floating_point()} == {torch.float32}


def test_the_steps_and_the_time_are_those_of_the_optimiser(data, outputs):
    overrides = ("recipe.batch_size=4", "limits.epochs=2", "trainer.accumulate_grad_batches=2")
    config = composed(data, outputs, *MOTIONS, *overrides)
    record = trained(config)
    assert record.steps == 2 * 6  # of 24 cases
    assert list(records.read_history(Path(config.paths.run) / "metrics.csv")) == [5, 11, 12]


def test_a_run_in_parts_is_evaluated_a_part_at_a_time(data, outputs, monkeypatch):
    sizes = []
    monkeypatch.setattr(split_data, "EvalBatches", lambda *args: sizes.append(args[1]) or EvalBatches(*args))
    overrides = ("recipe.batch_size=12", "limits.epochs=1", "trainer.accumulate_grad_batches=4")
    config = composed(data, outputs, *MOTIONS, *overrides)
    record = trained(config)
    with one_thread():
        assert evaluate(Path(config.paths.run), "test")[1] == pytest.approx(record.metrics["test/accuracy"])
    assert sizes == [3] * 3  # validation, test, and a separate evaluation


def test_the_place_of_a_process_is_that_of_its_launcher(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert distributed.rank() == 0
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert distributed.rank() == 1
    monkeypatch.setenv("RANK", "5")
    assert distributed.rank() == 5


def test_the_first_error_of_a_run_is_the_one_that_is_kept(tmp_path):
    assert records.read_error(tmp_path, since=0) is None
    records.write_error("pulled the plug", "trace", tmp_path)
    written = (tmp_path / "error.json").stat().st_mtime
    assert records.read_error(tmp_path, since=written - 1) == "pulled the plug"
    assert records.read_error(tmp_path, since=written + 1) is None


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore")  # of torch.compile
def test_a_compiled_run_is_evaluated_and_resumed_like_any_other(data, outputs):
    """Uses the real compiler. EcoFormer is refitted during the run, outside of the compiled code."""
    from runs import crash, one_thread

    from subquad.training.evaluation import evaluate

    overrides = (
        "task=uea/basic_motions", "attention=ecoformer", "attention.bits=4", "attention.anchors=5", "scale=smoke",
        "attention.refit_epochs=1", "limits.epochs=2", "recipe.batch_size=8", "backbone.dropout=0.0", *TINY,
    )  # fmt: skip
    plain = trained(composed(data, outputs / "plain", *overrides))
    config = composed(data, outputs / "compiled", *overrides, "compile_model=true")
    with crash(4), pytest.raises(RuntimeError, match="plug"):
        trained(config)
    record = trained(composed(data, outputs / "compiled", *overrides, "compile_model=true"))
    assert record.fingerprint == plain.fingerprint
    assert record.metrics["val/loss"] == pytest.approx(plain.metrics["val/loss"], rel=0.05)  # codes flip by rounding
    found = weights(Path(config.paths.run))
    assert found["network.layers.0.attention.fitted"]
    assert not any("_orig_mod" in key for key in found)
    with one_thread():
        _, now, recorded = evaluate(Path(config.paths.run), "test")
    assert now == recorded
