"""Commands: start, --help, errors, and the commands that messages suggest."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import CompactHydraException
from runs import ROOT, TINY, answer, composed

from subquad.cli import INTERRUPTED, command
from subquad.cli.__main__ import commands, main
from subquad.utils import display
from subquad.utils.errors import UserError


@pytest.mark.parametrize("name", [name for name in commands() if name != "train"])
def test_a_command_and_its_script_print_the_same_help_without_importing_it(name, monkeypatch, capsys):
    monkeypatch.setattr(command, "import_module", None)
    script = f"{name}.py" if name == "eval" else f"scripts/{name}.py"
    page = answer(script, "--help").stdout
    assert f"python {script}" in page
    monkeypatch.setattr(sys, "argv", ["subquad", name, "--help"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code is None
    assert capsys.readouterr().out == page


def test_a_folder_of_a_run_that_cannot_be_written_is_one_sentence(data, outputs):
    config = composed(data, outputs, "task=lra/listops", "scale=smoke", *TINY)
    (Path(config.paths.run) / ".hydra").parent.mkdir(parents=True)
    (Path(config.paths.run) / ".hydra").touch()
    paths = (f"paths.data={data}", f"paths.outputs={outputs}")
    done = answer("train.py", "task=lra/listops", "scale=smoke", *TINY, *paths)
    assert done.returncode == 1
    place = Path(config.paths.run) / ".hydra"
    assert done.stderr.startswith(
        f"{place} cannot be read or written (File exists); move the file {place} away, or set "
    )
    assert done.stderr.count("\n") == 1


def test_the_command_lists_its_commands_and_knows_no_others(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["subquad"])
    main()
    assert "  reproduce        Runs every cell" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["subquad", "reproduec", "table=dba/2"])
    with pytest.raises(SystemExit, match='There is no command "reproduec"; did you mean reproduce'):
        main()


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (UserError, ["Run python scripts/prepare.py task=digits."], "Run subquad prepare task=digits."),
        (OSError, [28, "No space left", "/x"], "/x cannot be read or written (No space left)"),
        (KeyboardInterrupt, [], "Interrupted; the same command continues"),
    ],
)
def test_an_error_ends_a_command_with_one_sentence(error, arguments, message, monkeypatch):
    def fail():
        raise error(*arguments)

    monkeypatch.setattr(display, "CHECKOUT", None)
    monkeypatch.setattr(command, "import_module", lambda name: type("Module", (), {"main": staticmethod(fail)}))
    monkeypatch.setattr(sys, "argv", ["plan.py"])
    with pytest.raises(SystemExit) as end:
        command.run("plan")
    assert str(end.value.code).startswith(message)


def test_a_mistake_in_the_code_shows_its_traceback(monkeypatch):
    monkeypatch.setattr(command, "import_module", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["plan.py"])
    with pytest.raises(AttributeError):
        command.run("plan")


def test_commands_in_a_text_are_those_of_the_place(monkeypatch, tmp_path):
    text = "Run `python scripts/prepare.py task=a` or scripts/plan.py, then python train.py a=1; see train.py."
    assert display.as_typed(text) == text
    typed = "Run `subquad prepare task=a` or subquad plan, then subquad train a=1; see train.py."
    monkeypatch.chdir(tmp_path)  # a project of its own, with the package installed from a checkout
    assert display.as_typed(text) == typed
    monkeypatch.setattr(display, "CHECKOUT", None)
    assert display.as_typed(text) == typed


def test_numbers_and_commands_are_shown_as_they_are_read_and_typed():
    assert [display.three_digits(cost) for cost in (0.01234, 12.345, 999.4, 999.7, 1860.2)] == [
        "0.0123", "12.3", "999", "1,000", "1,860",
    ]  # fmt: skip
    shown = [display.metric_text(name, 0.4321) for name in ("test/accuracy", "test/accuracy_number", "test/loss")]
    assert shown == ["43.21%", "43.21%", "0.4321"]
    assert display.command_line("python train.py", ["a=1", "b=[c, d]"]) == "python train.py a=1 'b=[c, d]'"


def test_importing_a_program_does_nothing():
    code = "import sys; sys.argv = ['x', 'attention=dbaa']; import train, eval; sys.path.append('scripts'); import plan"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.3, 4.0])
def test_an_interrupted_command_says_so_in_one_line(wait, tmp_path):
    """From its first imports on; before them, the interpreter itself is starting."""
    program = subprocess.Popen(
        [sys.executable, "-c", "import subquad.cli, sys; print(flush=True); from subquad.cli.command import run; "
         "sys.argv[1:] = ['table=dba/2']; run('plan')"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdout is not None
    program.stdout.readline()
    time.sleep(wait)
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=60)
    assert (program.returncode != 0, said) == (True, f"{INTERRUPTED}\n")


def half_done(*_, **__):
    """Ctrl-C while OmegaConf copies: its `finally` fails on an object that is only half there."""
    try:
        raise KeyboardInterrupt
    finally:
        getattr(None, "_invalidate_flags_cache")()  # noqa: B009


@pytest.mark.parametrize(
    "main", [half_done, command.user_errors(half_done), lambda _: ConfigLoaderImpl.load_configuration(None, None, [])]
)
def test_an_interrupt_that_a_library_replaces_by_another_error_is_one(main, monkeypatch):
    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", half_done)
    monkeypatch.setattr(
        command, "import_module", lambda name: type("Module", (), {"main": staticmethod(lambda: main(None))})
    )
    monkeypatch.setattr(sys, "argv", ["plan.py"])
    with pytest.raises(SystemExit) as end:
        command.run("plan")
    assert end.value.code == INTERRUPTED


@pytest.mark.parametrize("name", ["bench", "train"])  # Hydra prints the help of train
def test_a_command_whose_reader_has_ended_ends_quietly(name):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "subquad.cli", name, "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(("typed", "read"), [("hours=1:30", 90), ("seeds=[0, 010]", 8)])
def test_a_number_that_yaml_reads_as_another_one_is_refused(typed, read):
    defaults = {"hours": 1.0, "seeds": None}
    with pytest.raises(UserError, match=rf"{re.escape(typed)}: YAML takes .* for {read}; write a plain number"):
        command.script_settings(defaults, [typed])
    assert command.script_settings(defaults, ["hours=1_000", "seeds=[0,'010',1:75]"]).seeds == [0, "010", "1:75"]


def test_an_error_is_explained_once():
    def task(_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(CompactHydraException) as error:  # in a job, and where Hydra reports it
        command.user_errors(command.user_errors(task))(None)
    assert str(error.value).count("The memory does not suffice") == 1
