"""Commands that are killed at random moments and started again end as one that was left alone."""

import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from chaos.commands import RUN, Command, Done, clean_commit, do, often
from chaos.twin import OK, Bench, Verdict, difference, numbers, packed, runs, tree

_SIGNALS = (signal.SIGKILL,) * 6 + (signal.SIGTERM, signal.SIGINT)
_PREPARED = (
    ("task=lra/listops", "scale=smoke"), ("task=digits",), ("task=uea/basic_motions",),
    ("task=glue/sst2", "data=synthetic"), ("task=lra/text", "data=synthetic"), ("task=vqa_v2", "data=synthetic"),
    ("task=lra/image", "data=synthetic"), ("task=lra/retrieval", "data=synthetic"),
)  # fmt: skip


def disturbed(
    rng: random.Random, place: Path, arguments: tuple[str, ...], seconds: float, before: Callable[[], Any] | None = None
) -> Done | Verdict:
    """Kills a command one to three times and then lets it end."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        command = Command(place, *arguments, before=before)
        time.sleep(rng.uniform(0, seconds))
        command.send(rng.choice(_SIGNALS), child=rng.random() < 0.3, rng=rng)
        done = command.wait()
        if done.unclear:
            return Verdict("unclear", f"killed: {done.unclear}")
    done = do(place, *arguments, before=before)
    if done.unclear or done.status:
        state = "unclear" if done.unclear else "lost"
        return Verdict(state, f"started again: status {done.status}: {done.unclear or done.err.strip()[-300:]}")
    return done


def train(rng: random.Random, bench: Bench) -> Verdict:
    """A run, from nothing or from a checkpoint."""
    place = bench.fresh(rng.choice(("data", "half")))
    done = disturbed(rng, place, ("train", *RUN), 2.5, often if rng.random() < 0.7 else None)
    if isinstance(done, Verdict):
        return done
    found = runs(place / "outputs")
    if len(found) != 1:
        return Verdict("lost", f"{len(found)} runs")
    return same(bench.twin, numbers(next(iter(found.values()))))


def same(expected: dict[str, Any], found: dict[str, Any], state: str = "wrong") -> Verdict:
    differs = difference(expected, found)
    return OK if differs is None else Verdict(state, differs)  # type: ignore[arg-type]


def sweep(rng: random.Random, bench: Bench) -> Verdict:
    """Two runs of a sweep; the sweep itself or one of its workers is killed."""
    place = bench.fresh("data")
    arguments = ("train", "-m", *RUN, "seed=0,1", f"sweep.workers={rng.choice((1, 2))}")
    done = disturbed(rng, place, arguments, 4.0, often)
    if isinstance(done, Verdict):
        return done
    found, expected = runs(place / "outputs"), runs(bench.base / "done" / "outputs")
    if found.keys() != expected.keys():
        return Verdict("lost", f"{sorted(found)} for {sorted(expected)}")
    return next((v for name in found if (v := same(numbers(expected[name]), numbers(found[name]))) != OK), OK)


def prepare(rng: random.Random, bench: Bench) -> Verdict:
    """The data of a task."""
    task = rng.choice(_PREPARED)
    shutil.rmtree(bench.place, ignore_errors=True)
    twin = bench.base / "prepared" / task[0].partition("=")[2].replace("/", "-")
    if not twin.exists():
        done = do(bench.place, "prepare", *task)
        if done.status:
            return Verdict("unclear", done.err[-300:])
        shutil.copytree(bench.place / "data", twin)
        twin.with_suffix(".seconds").write_text(str(done.seconds))
        shutil.rmtree(bench.place)
    seconds = float(twin.with_suffix(".seconds").read_text())
    done = disturbed(rng, bench.place, ("prepare", *task), seconds)
    if isinstance(done, Verdict):
        return done
    # The names of caches of files contain their modification time.
    expected, found = (sorted(tree(folder).values()) for folder in (twin, bench.place / "data"))
    known = set(expected) - set(found)
    named = [name for name, digest in tree(twin).items() if digest in known and not name.endswith("meta.json")]
    return OK if len(expected) == len(found) and not named else Verdict("wrong", f"{task}: {named or len(found)}")


def evaluate(rng: random.Random, bench: Bench) -> Verdict:
    """An evaluation of a finished run, and one that is written to its folder."""
    place = bench.fresh("done")
    run = bench.run(place)
    if rng.random() < 0.5:
        shutil.rmtree(run / "evaluations")
        done = disturbed(rng, place, ("train", *RUN), 1.5)
    else:
        done = disturbed(rng, place, ("eval", f"run={run}"), 0.8)
        if isinstance(done, Done) and not _equal(done):
            return Verdict("wrong", done.out)
    return done if isinstance(done, Verdict) else same(bench.twin, numbers(run))


def _equal(done: Done) -> bool:
    words = done.out.split()
    return len(words) == 4 and words[1] == words[3].rstrip(")")


def pack(rng: random.Random, bench: Bench) -> Verdict:
    """A packed model."""
    place = bench.fresh("done")
    path = place / "packed.safetensors"
    expected = packed(path)
    if rng.random() < 0.5:
        path.unlink()
    done = disturbed(rng, place, ("pack", str(bench.run(place)), "output=packed.safetensors"), 0.4)
    if isinstance(done, Verdict):
        return done
    return same(expected, packed(path))


def results(rng: random.Random, bench: Bench) -> Verdict:
    """Results that are added to the store."""
    place = bench.fresh("done")
    expected = tree(place / "store")
    shutil.rmtree(place / "store")
    done = disturbed(rng, place, ("results", "add", "outputs"), 2.0, clean_commit)
    if isinstance(done, Verdict):
        return done
    return same(expected, tree(place / "store"), "lost")


def report(rng: random.Random, bench: Bench) -> Verdict:
    """The pages of a report."""
    bench.build_pages()
    place = bench.fresh("pages")
    if rng.random() < 0.5:
        shutil.rmtree(place / "outputs" / "report")
    done = disturbed(rng, place, ("report",), 10.0, clean_commit)
    if isinstance(done, Verdict):
        return done
    return same(bench.pages, tree(place / "outputs" / "report"), "lost")


KINDS = {
    f"kill.{case.__name__}": partial(case)
    for case in (train, sweep, prepare, evaluate, pack, results, report)
}  # fmt: skip
