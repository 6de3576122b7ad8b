"""Signals to loader workers: a worker ends at SIGTERM from the process that started it, and from no other."""

import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from subquad.data.loader_workers import Loader

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
    iterator = iter(Loader(Numbers(), batch_size=1, num_workers=2))
    assert next(iterator) == 0
    yield iterator, iterator._workers
    iterator._shutdown_workers()


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
    iterator._shutdown_workers()
    assert [worker.is_alive() for worker in workers] == [False, False]


def test_the_process_itself_takes_signals_as_before(started):
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
