"""Kernels are compiled once, and torch's operators run where they cannot be compiled."""

import ctypes
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from kernels.checks import needs
from subquad.kernels import build
from subquad.kernels.build import cache_folder
from subquad.measure.machine import facts
from subquad.utils.errors import UserError

needs_compiler = needs("short_attention")


def library() -> ctypes.CDLL | None:
    """`library` without its cache, as in a new process."""
    return build._library.__wrapped__("short_attention")


@pytest.fixture(autouse=True)
def _fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("SUBQUAD_KERNELS", "SUBQUAD_KERNEL_CACHE", "CXX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The calls of the compiler that compile something."""
    calls, run = [], subprocess.run

    def watched(command, **options):
        if "-o" in command:
            calls.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    return calls


def compiler(folder: Path, body: str) -> str:
    """A compiler script that prints a version and otherwise executes these lines of shell."""
    place = folder / "compiler"
    place.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit 0\n{body}\n')
    place.chmod(0o755)
    return str(place)


@needs_compiler
@pytest.mark.slow
def test_compiles_once_and_keeps_it(compilations: list[list[str]]) -> None:
    assert library().forward
    assert library().forward
    assert len(compilations) == 1
    assert len(list(cache_folder().iterdir())) == 1


@needs_compiler
@pytest.mark.slow
def test_records_name_the_kernels_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_in_use", set())
    assert facts()["versions"]["kernels"] == "none"
    library()
    assert facts()["versions"]["kernels"] == "short_attention"


@pytest.mark.slow
@needs_compiler
def test_another_processor_gets_a_kernel_of_its_own(
    compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    library()
    monkeypatch.setattr(build, "_processor", lambda: b"another")
    library()
    assert len(list(cache_folder().iterdir())) == len(compilations) == 2


@needs_compiler
@pytest.mark.slow
def test_a_broken_file_is_made_again(compilations: list[list[str]]) -> None:
    program = "from subquad.kernels.build import library; library('short_attention')"
    subprocess.run(
        [sys.executable, "-c", program], check=True
    )  # a new process, because this one would not load the file again
    (file,) = cache_folder().iterdir()
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[: len(content) // 2])
    assert library().forward
    assert len(compilations) == 1


def test_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBQUAD_KERNELS", "off")
    assert library() is None
    assert not cache_folder().exists()


def test_a_word_that_means_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBQUAD_KERNELS", "never")
    with pytest.raises(UserError, match=r"never.*on or off"):
        library()


@needs_compiler
@pytest.mark.parametrize(("name", "value"), [("CXX", "g++ 'half a quote"), ("HOME", None)])
def test_an_environment_that_makes_no_sense_is_told(
    name: str, value: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home")))
    if value is not None:
        monkeypatch.setenv(name, value)
    assert library() is None
    assert "SUBQUAD_KERNELS=off" in caplog.text


def test_without_a_compiler_there_is_no_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    assert library() is None
    assert "SUBQUAD_KERNELS=off" not in caplog.text
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library() is None
    assert "no-such-compiler" in caplog.text


@needs_compiler
def test_threads_share_one_kernel(compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_library", cache(build._library.__wrapped__))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(build.library, ["short_attention"] * 4))
    assert len(set(map(id, results))) == len(compilations) == 1
    assert results[0] is not None


@needs_compiler
def test_a_relative_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUBQUAD_KERNEL_CACHE", ".")
    assert library() is not None


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are for Linux")
@pytest.mark.parametrize(
    ("body", "said"),
    [("echo it is raining >&2; exit 1", "it is raining"), ('touch "$(eval echo \\$$#)"', "file too short")],
)
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, body: str, said: str
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, body))
    with caplog.at_level(logging.WARNING):
        assert library() is None
    assert said in caplog.text
    assert "SUBQUAD_KERNELS=off" in caplog.text
    assert not [file for file in cache_folder().iterdir() if file.name.endswith(".partial")]


@needs_compiler
def test_a_folder_that_takes_nothing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "a file"
    place.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    assert library() is None
    assert str(place) in caplog.text
