"""Two processes: other mechanisms, sharded parameters, resuming with another number of processes, and failures."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from processes import CASES, DDP, SHARDED, assert_same, command_lines, run_of, told, train_together
from runs import composed, crash, program, run_script, trained

from subquad import records

pytestmark = pytest.mark.slow

NAMES = ("fitted", "redrawn", "sum of losses")


@pytest.fixture(scope="module")
def alone(tmp_path_factory, data):
    """The runs of one process."""
    place = tmp_path_factory.mktemp("alone")
    for case in NAMES:
        trained(composed(data, place / case, *CASES[case]))
    return place


@pytest.fixture(scope="module")
def together(tmp_path_factory, data, alone):
    """Runs of two processes: complete ones, resumed ones that one process began, and interrupted ones."""
    place = tmp_path_factory.mktemp("together")
    for name in ("ours", "ours sharded"):
        with crash(12), pytest.raises(RuntimeError, match="plug"):
            trained(composed(data, place / name, *CASES["fitted"]))
    runs = [
        (told(data, place / "redrawn", "redrawn", *DDP), None),
        (told(data, place / "sum of losses", "sum of losses", *DDP), None),
        (told(data, place / "sharded", "fitted", *SHARDED), None),
        (told(data, place / "ours", "fitted", *DDP), None),
        (told(data, place / "ours sharded", "fitted", *SHARDED), None),
        (told(data, place / "theirs", "fitted", *DDP), 12),
        (told(data, place / "theirs sharded", "fitted", *SHARDED), 12),
    ]
    train_together(place / "said", runs)
    return place


@pytest.mark.parametrize("case", ["redrawn", "sum of losses"])
def test_two_processes_train_to_the_numbers_of_one(together, alone, case):
    assert_same(run_of(together / case), run_of(alone / case))


def test_processes_that_divide_the_parameters_train_to_the_numbers_of_one(together, alone):
    assert_same(run_of(together / "sharded"), run_of(alone / "fitted"))


@pytest.mark.parametrize("name", ["ours", "ours sharded"])
def test_two_processes_go_on_with_a_run_of_one(together, alone, name):
    assert_same(run_of(together / name), run_of(alone / "fitted"))


@pytest.mark.parametrize("name", ["theirs", "theirs sharded"])
def test_one_process_goes_on_with_a_run_of_two(together, alone, data, name):
    assert not list((together / name).rglob("result.json"))
    trained(composed(data, together / name, *CASES["fitted"]))
    assert_same(run_of(together / name), run_of(alone / "fitted"))


LINE = (*(word for word in CASES["fitted"] if word != "trainer=cpu"), *DDP)


def started(data, outputs, script, *overrides, **places):
    command, settings = program(data, outputs, script, *overrides)
    settings["env"] |= places
    return subprocess.Popen(command, **settings)


def wait_for(process, found):
    deadline = time.monotonic() + 120
    while not found() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()


def gone(overrides):
    """Whether all processes of a command have ended; a killed one may take a moment."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any(str(overrides) in line for line in command_lines()):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_killed_command_line_goes_on_in_one_process(data, outputs, alone):
    command = (*LINE, f"paths.data={data}", f"paths.outputs={outputs}")
    outputs.parent.mkdir(exist_ok=True)
    process = started(data, outputs, "train.py", *command)
    wait_for(process, lambda: any(outputs.rglob("last.ckpt")))
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert gone(outputs)
    done = run_script(data, outputs, "train.py", *CASES["fitted"], f"paths.data={data}")
    assert done.returncode == 0, done.stderr
    assert "Resuming from the last checkpoint" in done.stderr
    assert_same(run_of(outputs), run_of(alone / "fitted"))


def test_an_interrupt_ends_all_processes(data, outputs):
    process = started(data, outputs, "train.py", *LINE, "limits.epochs=4000", f"paths.outputs={outputs}")
    wait_for(process, lambda: any(outputs.rglob("last.ckpt")))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert said.count("Interrupted; the same command resumes") == 1
    assert gone(outputs)
    assert not list(outputs.rglob("result.json"))


FRAGILE = """
import os
import time
import hydra
from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from subquad.config.choices import CONFIGS
from subquad.cli.command import prepare_process
from subquad.cli.command import user_errors

prepare_process()

@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
@user_errors
def main(config):
    from subquad.training.run import train
    from subquad.training.callbacks.refresh import RefreshAttention

    def fragile(self, trainer, *rest):
        if trainer.global_step == 3 and trainer.global_rank == int(os.environ["FAILS"]):
            raise RuntimeError("pulled the plug")

    RefreshAttention.on_train_batch_start = fragile
    _ChildProcessObserver.__init__.__defaults__ = (0.1,)
    try:
        train(config)
    finally:
        time.sleep(1)  # the observer may look before the error is printed

main()
"""


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.release), 1])
def test_the_failure_of_one_process_ends_all_and_is_kept(data, outputs, tmp_path, rank):
    outputs.mkdir(parents=True)
    script = tmp_path / "fragile.py"
    script.write_text(FRAGILE)
    process = started(data, outputs, str(script), *LINE, f"paths.outputs={outputs}", FAILS=str(rank))
    _, said = process.communicate(timeout=120)
    assert process.returncode not in (0, None)
    assert "pulled the plug" in said
    [error] = outputs.rglob("error.json")
    assert json.loads(error.read_text())["message"] == "pulled the plug"
    assert gone(outputs)
    assert not list(outputs.rglob("result.json"))


@pytest.mark.release
def test_a_sweep_trains_each_combination_by_two_processes_once(data, outputs):
    overrides = (*LINE, "limits.epochs=1", f"paths.outputs={outputs}", "logger=wandb", "seed=0,1", "-m")
    done = run_script(data, outputs, "train.py", *overrides)
    assert done.returncode == 0, done.stderr
    assert {record.seed for record in records.read_all(outputs / "runs")} == {0, 1}
    assert "Traceback" not in done.stderr
    offline = [path for path in outputs.rglob("offline-run-*") if path.is_dir()]
    assert len(offline) == 2  # one for each run: only the first process logs to Weights & Biases
    assert done.stdout.count("test/accuracy") == 2


def test_torchrun_starts_the_processes_of_one_run(data, outputs):
    command, settings = program(data, outputs, "train.py", *LINE, "limits.epochs=1", "trainer.devices=2")
    command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    outputs.parent.mkdir(exist_ok=True)
    settings["env"]["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, timeout=90, check=False, **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test/accuracy") == 1
    assert os.path.exists(run_of(outputs) / "checkpoints" / "best.ckpt")
