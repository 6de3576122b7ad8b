"""How fast batches come, beside how fast a model learns from them: is training bound by its data?

    python scripts/bench_data.py                                       # ListOps and digits, two workers
    python scripts/bench_data.py task=[cifar/cifar10] workers=4 data=standin
    python scripts/bench_data.py task=all data=standin seconds=1

For each task: rows per second that the training loader delivers, rows per second of training steps (forward, backward,
optimiser) on batches that are already there, and their ratio. The first batches, which start the workers, do not count.
Words that are not settings go to the configuration of the task.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from subquad.errors import UserError
from subquad.run.doors import answer_help, compose_run, options, prepare_process

answer_help(__doc__)
prepare_process(check_choices=False)

import torch  # noqa: E402
from hydra.utils import instantiate  # noqa: E402

from subquad.cores import usable_cores  # noqa: E402
from subquad.data.base import SplitData  # noqa: E402
from subquad.specs import Batch  # noqa: E402

SETTINGS: dict[str, Any] = {"task": ["lra/listops", "digits"], "workers": 2, "seconds": 5.0, "kept": 8}


def main() -> None:
    """One row for each task."""
    words = [word for word in sys.argv[1:] if word.partition("=")[0] not in SETTINGS]
    config = OmegaConf.merge(SETTINGS, OmegaConf.from_dotlist([word for word in sys.argv[1:] if word not in words]))
    torch.set_num_threads(usable_cores())
    table = Table(title=f"Rows per second, {config.workers} workers, {torch.get_num_threads()} threads")
    for heading in ("task", "attention", "batch", "loader", "training", "loader / training"):
        table.add_column(heading, justify="left" if heading in ("task", "attention") else "right")
    every = [task for task in options("task") if not task.endswith("/custom")]
    for task in every if config.task == "all" else [config.task] if isinstance(config.task, str) else config.task:
        table.add_row(*_cells(task, words, config))
    Console(width=110).print(table)


def _cells(task: str, words: list[str], config: Any) -> list[str]:
    attention = next((word.partition("=")[2] for word in words if word.startswith("attention=")), "dba")
    scale = [] if any(word.startswith("scale=") for word in words) else ["scale=laptop"]
    composed = compose_run([f"task={task}", f"attention={attention}", *scale, *words])
    run: Any = OmegaConf.create(OmegaConf.to_container(composed, resolve=True))
    run.data.num_workers = config.workers
    data: SplitData = instantiate(run.data, _convert_="all")
    data.prepare_data()
    module = instantiate(run.task.module, _convert_="all")(spec=data.spec)
    stream = _endless(data)
    kept = list(itertools.islice(stream, config.kept))
    loader = _rate(stream, lambda batch: None, config.seconds)
    training = _rate(itertools.cycle(kept), _step(module), config.seconds)
    return [task, attention, str(len(kept[0])), f"{loader:,.0f}", f"{training:,.0f}", f"{loader / training:.1f}"]


def _endless(data: SplitData) -> Iterator[Batch]:
    """Batches of training, epoch after epoch."""
    loader: Any = data.train_dataloader()
    for epoch in itertools.count():
        loader.batch_sampler.set_epoch(epoch)
        yield from loader


def _step(module: Any) -> Callable[[Batch], None]:
    """One step of training on a batch."""
    optimizer = module.make_optimizer(module.parameters())
    module.train()

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        module.training_step(batch).backward()
        optimizer.step()

    return step


def _rate(batches: Iterable[Batch], use: Callable[[Batch], None], seconds: float) -> float:
    """Rows per second over at least so many seconds; the first batch does not count."""
    rows, started = 0, None
    for batch in batches:
        use(batch)
        now = time.perf_counter()
        if started is None:
            started = now
            continue
        rows += len(batch)
        if now - started >= seconds:
            break
    assert started is not None
    return rows / (now - started)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
