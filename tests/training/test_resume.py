"""A run that is interrupted anywhere and resumed gives exactly the numbers of an uninterrupted one."""

import re
import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch
from runs import TINY, answer, composed, crash, identical, trained, weights

from subquad import records
from subquad.config.compose import compose_run
from subquad.data.time_series.ts_files import write_synthetic
from subquad.utils.errors import UserError

EPOCHS = ("task=uea/basic_motions", "attention=dba", "scale=smoke", "limits.epochs=5", "recipe.batch_size=6", *TINY)
STEPS = (
    "task=lra/listops", "attention=dba", "scale=smoke", "limits.steps=12", "recipe.steps_per_epoch=3",
    "optimizer.lr=0.01", "scheduler.warmup=4", *TINY,
)  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, data):
    outputs = tmp_path_factory.mktemp("undisturbed")
    found = {}
    for overrides in (EPOCHS, STEPS):
        config = composed(data, outputs, *overrides)
        found[overrides] = trained(config), Path(config.paths.run)
    return found


def assert_same(run: Path, expected: Path) -> None:
    assert (run / "metrics.csv").read_text() == (expected / "metrics.csv").read_text()
    for name in ("best.ckpt", "last.ckpt"):
        assert identical(weights(run, name), weights(expected, name))
    assert records.read(run).metrics == records.read(expected).metrics


@pytest.mark.slow
def test_series_are_validated_after_the_first_every_second_and_the_last_epoch(undisturbed):
    history = records.read_history(undisturbed[EPOCHS][1] / "metrics.csv")
    assert [step // 4 for step, row in history.items() if "val/accuracy" in row] == [0, 1, 3, 4]


@pytest.mark.parametrize("step", [1, 9, 13], ids="step{}".format)
@pytest.mark.slow
def test_a_run_of_epochs_that_crashed_ends_as_one_that_did_not(data, outputs, undisturbed, step):
    config = composed(data, outputs, *EPOCHS)
    with crash(step), pytest.raises(RuntimeError, match="plug"):
        trained(config)
    trained(composed(data, outputs, *EPOCHS))
    assert_same(Path(config.paths.run), undisturbed[EPOCHS][1])


@pytest.mark.parametrize("step", [3, 11], ids="step{}".format)
def test_a_run_of_steps_that_crashed_ends_as_one_that_did_not(data, outputs, undisturbed, step):
    config = composed(data, outputs, *STEPS)
    with crash(step), pytest.raises(RuntimeError, match="plug"):
        trained(config)
    trained(composed(data, outputs, *STEPS))
    assert_same(Path(config.paths.run), undisturbed[STEPS][1])


@pytest.mark.slow
def test_ctrl_c_while_a_checkpoint_is_written_is_no_failure(data, outputs, undisturbed):
    """torch then raises an error of its own when it closes the file."""
    config = composed(data, outputs, *EPOCHS)
    intact, written = torch.save, []

    def stopped(checkpoint, file):
        written.append(file)
        if len(written) < 4:
            return intact(checkpoint, file)
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("unexpected pos 309440 vs 309328")

    with mock.patch("torch.save", stopped), pytest.raises(SystemExit) as ended:
        trained(config)
    assert ended.value.code == 130
    assert not (Path(config.paths.run) / records.ERROR).exists()
    trained(composed(data, outputs, *EPOCHS))
    assert_same(Path(config.paths.run), undisturbed[EPOCHS][1])


@pytest.mark.slow
def test_a_run_that_crashed_again_and_again_ends_as_one_that_did_not(data, outputs, undisturbed):
    for _ in range(2):  # each try gets one epoch further
        with crash(5), pytest.raises(RuntimeError, match="plug"):
            trained(composed(data, outputs, *EPOCHS))
    config = composed(data, outputs, *EPOCHS)
    trained(config)
    assert_same(Path(config.paths.run), undisturbed[EPOCHS][1])


def test_a_run_killed_after_training_and_before_its_record_keeps_its_numbers(data, outputs, undisturbed):
    config = composed(data, outputs, *EPOCHS)
    with mock.patch.object(records, "write", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        trained(config)
    assert records.read(Path(config.paths.run)) is None
    with crash(0):  # no step is left to train
        trained(composed(data, outputs, *EPOCHS))
    assert_same(Path(config.paths.run), undisturbed[EPOCHS][1])


@pytest.mark.parametrize(("overrides", "step"), [(STEPS, 11), (EPOCHS, 99)], ids=["in training", "before its record"])
@pytest.mark.slow
def test_an_interrupted_run_that_moved_ends_as_one_that_did_not(data, outputs, undisturbed, tmp_path, overrides, step):
    """The best epoch is the first one, which is trained before the move."""
    with (
        crash(step),
        mock.patch.object(records, "write", side_effect=RuntimeError("plug")),
        pytest.raises(RuntimeError, match="plug"),
    ):
        trained(composed(data, outputs, *overrides))
    shutil.move(outputs, tmp_path / "moved")
    config = composed(data, tmp_path / "moved", *overrides)
    trained(config)
    assert_same(Path(config.paths.run), undisturbed[overrides][1])
    assert not outputs.exists()


@pytest.fixture(scope="module")
def crashed(tmp_path_factory, data):
    """The outputs folder of a run after three of its four epochs."""
    outputs = tmp_path_factory.mktemp("crashed") / "outputs"
    with crash(11), pytest.raises(RuntimeError, match="plug"):
        trained(composed(data, outputs, *STEPS))
    return outputs


@pytest.fixture
def interrupted(crashed, data, outputs) -> Path:
    """A copy of that run, which the test may change."""
    shutil.copytree(crashed, outputs)
    return Path(composed(data, outputs, *STEPS).paths.run)


def test_a_best_checkpoint_of_another_epoch_is_refused(data, outputs, interrupted):
    """It can remain after a kill between writing the best and the last checkpoint if the epoch does not repeat exactly.

    This is the case on a GPU.
    """
    run = interrupted
    best = run / "checkpoints" / "best.ckpt"
    known = torch.load(best, weights_only=True)
    torch.save(known | {"metrics": known["metrics"] | {"val/accuracy": 0.5}}, best)
    with pytest.raises(UserError, match=r"best\.ckpt has val/accuracy 0\.5 and .* 0\.09375; delete .* to train again"):
        trained(composed(data, outputs, *STEPS))
    assert records.read(run) is None


def own_files(folder: Path, cases: int) -> tuple[str, ...]:
    """Writes a custom data set, whose files users may change, and returns the overrides of a run on it."""
    write_synthetic(folder, dataset="Own", kind="classification", train=cases, test=24)
    overrides = ("task=uea/custom", "data.dataset=Own", f"data.folder={folder}", "attention=softmax", "scale=smoke")
    return (*overrides, "limits.epochs=4", "recipe.batch_size=6", *TINY)


DIFFER = r"data differ from those .* \(fingerprint \w{16} now, \w{16} then\); restore the old files, or delete .*-s0 to"


def test_an_interrupted_run_whose_data_changed_is_refused(data, outputs, tmp_path):
    overrides = own_files(tmp_path / "own", 24)
    with crash(9), pytest.raises(RuntimeError, match="plug"):
        trained(composed(data, outputs, *overrides))
    own_files(tmp_path / "own", 25)
    with pytest.raises(UserError, match=DIFFER):
        trained(composed(data, outputs, *overrides))


@pytest.mark.slow
def test_a_finished_run_whose_data_changed_is_not_shown_as_if_nothing_had(data, outputs, tmp_path):
    overrides = (*own_files(tmp_path / "own", 24), "limits.epochs=1", f"paths.data={data}", f"paths.outputs={outputs}")
    trained(compose_run(overrides))
    own_files(tmp_path / "own", 25)
    done = answer("train.py", *overrides)
    assert done.returncode == 1
    assert re.search(DIFFER, done.stderr)
    shutil.rmtree(tmp_path / "own")
    done = answer("train.py", *overrides)
    assert (done.returncode, "test/accuracy" in done.stdout) == (0, True)
    assert "was trained on cannot be checked: " in done.stderr


@pytest.mark.parametrize("content", [b"PK", [1], {"state_dict": {}}], ids=repr)
@pytest.mark.parametrize("name", ["last", "best"])
def test_a_damaged_checkpoint_of_a_run_is_named(data, outputs, interrupted, name, content):
    path = interrupted / "checkpoints" / f"{name}.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(
        UserError, match=rf"{name}\.ckpt is damaged, or of an earlier version \(.*\); delete .*-s0 to train again"
    ):
        trained(composed(data, outputs, *STEPS))


@pytest.mark.parametrize("change", ["optimizer.lr=0.02", "seed=1"])
@pytest.mark.slow
def test_a_checkpoint_of_another_run_with_the_same_model_is_refused(data, outputs, interrupted, change):
    run = interrupted
    other = composed(data, outputs, *STEPS, change)
    trained(other)
    for name in ("last", "best"):
        path = run / "checkpoints" / f"{name}.ckpt"
        kept = path.read_bytes()
        shutil.copy(Path(other.paths.run) / "checkpoints" / f"{name}.ckpt", path)
        with pytest.raises(UserError, match=rf"{name}\.ckpt belongs to another run .*; restore its own, or delete"):
            trained(composed(data, outputs, *STEPS))
        path.write_bytes(kept)


@pytest.mark.parametrize("name", ["last", "best"])
def test_one_changed_bit_of_a_weight_is_noticed(data, outputs, interrupted, name):
    path = interrupted / "checkpoints" / f"{name}.ckpt"
    content = bytearray(path.read_bytes())
    weight = max(weights(path.parents[1], f"{name}.ckpt").values(), key=lambda tensor: tensor.numel())
    content[content.index(weight.numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}\.ckpt is damaged, or of an earlier version \(it is not .*truncated"):
        trained(composed(data, outputs, *STEPS))


@pytest.mark.parametrize(
    ("step", "text"), [*((11, text) for text in (None, "", "step\nx", "step,val/loss\n2,0.5\n5,0.5\n")), (99, None)]
)
@pytest.mark.slow
def test_a_lost_or_changed_history_is_written_again(data, outputs, undisturbed, step, text):
    """Of a run that crashed in training, or before its record."""
    config = composed(data, outputs, *STEPS)
    with (
        crash(step),
        mock.patch.object(records, "write", side_effect=RuntimeError("plug")),
        pytest.raises(RuntimeError, match="plug"),
    ):
        trained(config)
    history = Path(config.paths.run) / records.HISTORY
    history.unlink() if text is None else history.write_text(text)
    trained(composed(data, outputs, *STEPS))
    assert_same(Path(config.paths.run), undisturbed[STEPS][1])


def test_a_checkpoint_holds_no_path_of_this_machine(crashed, interrupted):
    path = interrupted / records.LAST
    content = torch.load(path, weights_only=True)["callbacks"]
    assert any(state.get("best_model_path") == "best.ckpt" for state in content.values())
    assert str(crashed) not in repr(content)


@pytest.mark.slow
def test_a_run_read_by_worker_processes_is_the_same_run(data, outputs, undisturbed):
    overrides = (*EPOCHS, "data.num_workers=1")
    with crash(5), pytest.raises(RuntimeError, match="plug"):
        trained(composed(data, outputs, *overrides))
    config = composed(data, outputs, *overrides)
    trained(config)
    assert_same(Path(config.paths.run), undisturbed[EPOCHS][1])
