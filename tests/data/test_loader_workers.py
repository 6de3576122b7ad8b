"""Loader workers: a worker ends at SIGTERM from the process that started it alone, and no run waits for ever."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from subquad.data.loader_workers import LONGEST_FOLDER, Loader
from subquad.utils.errors import UserError, explain

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # fork, Python 3.12


class Numbers(Dataset[torch.Tensor]):
    """The numbers 0 to 39."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


@pytest.fixture
def started() -> Iterator[tuple[Any, list[Any]]]:
    """A started iterator and its worker processes."""
    loader = Loader(Numbers(), batch_size=1, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    assert next(iterator) == 0
    yield iterator, loader._iterator._workers
    loader._iterator._shutdown_workers()


def test_sigterm_of_others_ends_no_worker(started):
    iterator, workers = started
    for worker in workers:
        subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)
    assert [int(number) for number in iterator] == list(range(1, 40))


def test_sigterm_of_the_parent_ends_a_worker(started):
    _, workers = started
    workers[1].terminate()
    workers[1].join(20)
    assert workers[1].exitcode == 0


def test_workers_end_with_their_iterator(started):
    iterator, workers = started
    iterator.batches._shutdown_workers()
    assert [worker.is_alive() for worker in workers] == [False, False]


def test_the_process_itself_takes_signals_as_before(started):
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


class Endless(Numbers):
    """As on a network drive that does not answer."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(3600)
        raise AssertionError


def test_a_run_that_waits_for_a_batch_ends_at_sigterm():
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))

    def end() -> None:
        raise EOFError

    loader = Loader(Endless(), batch_size=1, num_workers=1, persistent_workers=True, at_sigterm=end)
    try:
        batches = iter(loader)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(EOFError):
            next(batches)
        assert received == [signal.SIGTERM]  # the handler of the run was called too
    finally:
        loader._iterator._workers[0].terminate()
        loader._iterator._workers[0].join(20)
        signal.signal(signal.SIGTERM, before)


def not_to_be_sent(rows: list[torch.Tensor]) -> Any:
    return lambda: rows


@pytest.mark.slow
def test_a_batch_that_cannot_be_sent_ends_the_run():
    with pytest.raises(RuntimeError) as raised:
        next(iter(Loader(Numbers(), batch_size=1, num_workers=1, collate_fn=not_to_be_sent)))
    assert "error that is printed above; with data.num_workers=0" in str(explain(raised.value))


@pytest.mark.parametrize(
    ("end", "remedy"),
    [("is killed by signal: Bus error.", "--shm-size"), ("is killed by signal: Killed.", "num_workers to fewer")],
)
def test_the_remedy_follows_from_how_a_process_ended(end, remedy):
    assert remedy in str(explain(RuntimeError(f"DataLoader worker (pid 12) {end} It is possible that")))


@pytest.mark.slow
def test_workers_start_where_the_path_of_temporary_files_is_long(tmp_path):
    """The path of a socket has about 100 bytes."""
    program = (
        "from tests.data.test_loader_workers import Loader, Numbers\n"
        "print([int(i) for i in Loader(Numbers(), batch_size=20, num_workers=2, collate_fn=sum)])"
    )
    folder = tmp_path / ("x" * LONGEST_FOLDER)
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert ended.stdout.split() == ["[190,", "590]"], ended.stderr
    assert not list(folder.iterdir())


def test_a_path_that_stays_too_long_is_refused(monkeypatch):
    monkeypatch.setattr("multiprocessing.util.get_temp_dir", lambda: "/" + "x" * LONGEST_FOLDER)
    with pytest.raises(UserError, match="set TMPDIR to a shorter path, or data"):
        iter(Loader(Numbers(), num_workers=1))
