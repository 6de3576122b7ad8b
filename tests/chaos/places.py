"""Moved folders, changed data, full and read-only disks, jumping clocks, two commands at once, hostile names."""

import contextlib
import datetime
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from chaos.commands import DATA, RUN, Command, Done, clean_commit, do, often
from chaos.damage import _load
from chaos.kills import same
from chaos.twin import OK, Bench, Verdict, numbers, runs, tree

NAMES = (
    "a b", "ü ß 漢字", "it's", 'say "no"', "a=b", "$HOME", "$(id)", "{a}", "[0]", "a,b", "#x", "%20", "-m",
    "~", "a\\b", "<script>alert(1)</script>", "&amp;", "new\nline", "tab\tstop", "x" * 200, ".hidden", "*", "?",
    "a;b", "`id`", "\u202eabc", "😀",
)  # fmt: skip


def _runs_same(bench: Bench, outputs: Path) -> Verdict:
    found = runs(outputs)
    if len(found) != 1:
        return Verdict("lost", f"{len(found)} runs")
    return same(bench.twin, numbers(next(iter(found.values()))))


def _clear(done: Done, what: str) -> Verdict | None:
    return Verdict("unclear", f"{what}: {done.unclear}") if done.unclear else None


def moved(rng: random.Random, bench: Bench) -> Verdict:
    """A run that was killed is resumed where its folder has been moved, under a hostile name."""
    place, name = bench.fresh("half"), rng.choice(NAMES)
    target = place / "moved" / name
    target.parent.mkdir()
    (place / "outputs").rename(target)

    def here() -> None:
        os.environ["SUBQUAD_OUTPUTS"] = str(target)
        if rng.random() < 0.5:
            often()

    done = do(place, "train", *RUN, before=here)
    if done.unclear:
        return Verdict("unclear", f"{name!r}: {done.unclear}")
    if done.status:
        return Verdict("lost", f"{name!r}: {done.err.strip()[-300:]}")
    return _runs_same(bench, target)


def names(rng: random.Random, bench: Bench) -> Verdict:
    """Folders, tags and files with hostile names, from training to the pages."""
    place, name = bench.fresh("data"), rng.choice(NAMES)
    home = place / "in" / name
    home.mkdir(parents=True)
    (place / "data").rename(home / "data")

    def here() -> None:
        clean_commit()
        os.environ |= {"SUBQUAD_OUTPUTS": str(home / "outputs"), "SUBQUAD_DATA": str(home / "data")}

    quoted = "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"
    done = do(place, "train", *RUN, f"tags=[{quoted}]", before=here)
    if done.unclear:
        return Verdict("unclear", f"train {name!r}: {done.unclear}")
    if done.status:
        return OK if "tags" in done.err else Verdict("lost", f"train {name!r}: {done.err.strip()[-300:]}")
    if (verdict := _runs_same(bench, home / "outputs")) != OK:
        return verdict
    [run] = runs(home / "outputs").values()
    for arguments in (("pack", str(run)), ("results", "add", str(home / "outputs"))):
        if name == "-m" or "=" in str(run):  # an argument with "=" is a setting
            continue
        done = do(place, *arguments, before=here)
        if done.unclear or done.status:
            return Verdict("unclear", f"{arguments[0]} {name!r}: {done.unclear or done.err.strip()[-300:]}")
    return OK


def changed_data(rng: random.Random, bench: Bench) -> Verdict:
    """Other data lie under the name of those that a run was trained on; nothing in them is damaged."""
    template = rng.choice(("half", "done"))
    place = bench.fresh(template)
    other = bench.base / "other"
    if not other.exists():
        must = do(other, "prepare", *DATA, "data.data_seed=7")
        assert must.status == 0, must.err
    [cache], [new] = (list((p / "data").rglob("meta.json")) for p in (place, other))
    shutil.rmtree(cache.parent)
    shutil.copytree(new.parent, cache.parent)
    meta = json.loads(cache.read_text())
    cache.write_text(json.dumps(meta | {"folder": cache.parent.name}))
    command = rng.choice(("train", "eval", "pack")) if template == "done" else "train"
    run = next((place / "outputs").rglob("checkpoints")).parent
    arguments = {"train": RUN, "eval": (f"run={run}",), "pack": (str(run),)}[command]
    done = do(place, command, *arguments)
    if (verdict := _clear(done, f"{command} on other data")) is not None:
        return verdict
    return OK if done.status and "data differ" in done.err else Verdict("wrong", f"{command}: {done.out}{done.err}")


@contextlib.contextmanager
def _disk(folder: Path, size: int | None) -> Iterator[Callable[[], None]]:
    """A small file system in a folder, or one limited in the size of its files where nothing may be mounted.

    size: bytes; None for a read-only copy of the folder. Yields what a command must do before it starts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={64 << 20 if size is None else size}"
    content = folder.with_name("content")
    if size is None:
        shutil.copytree(folder, content)
    mounted = not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    ).returncode

    def limit() -> None:
        if not mounted and size is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    try:
        if mounted and size is None:
            shutil.copytree(content, folder, dirs_exist_ok=True)
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield limit
        if mounted and size is not None:
            shutil.copytree(folder, content, dirs_exist_ok=True)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
    if mounted and size is not None:
        shutil.copytree(content, folder, dirs_exist_ok=True)


def full_disk(rng: random.Random, bench: Bench) -> Verdict:
    """The disk of outputs or data is full; with space, the same command ends as the twin."""
    on_data = rng.random() < 0.3
    place = bench.fresh("data")
    if on_data:
        shutil.rmtree(place / "data")
    folder = place / ("data" if on_data else "outputs")
    size = int(4096 * 2 ** rng.uniform(0, 8))
    with _disk(folder, size) as limit:
        done = do(place, "train", *RUN, before=limit)
    if (verdict := _clear(done, f"{folder.name} of {size} bytes")) is not None:
        return verdict
    if done.status and not any(word in done.err for word in ("free some space", "disk is full")):
        return Verdict("unclear", f"{size}: {done.err.strip()[-300:]}")
    done = do(place, "train", *RUN)
    if done.unclear or done.status:
        return Verdict("lost", f"after {size} bytes: {done.unclear or done.err.strip()[-300:]}")
    return _runs_same(bench, place / "outputs")


def read_only(rng: random.Random, bench: Bench) -> Verdict:
    """The outputs cannot be written: what only reads works, the rest is one sentence."""
    template = rng.choice(("half", "done"))
    place = bench.fresh(template)
    run = next((place / "outputs").rglob("checkpoints")).parent
    command = rng.choice(("train", "eval", "pack", "results")) if template == "done" else "train"
    arguments = {"train": RUN, "eval": (f"run={run}",), "pack": (str(run),), "results": ("add", "outputs")}[command]
    with _disk(place / "outputs", None):
        done = do(place, command, *arguments, before=clean_commit)
    if (verdict := _clear(done, f"{command} {template}")) is not None:
        return verdict
    if command == "eval" and done.status:
        return Verdict("lost", f"eval: {done.err.strip()[-300:]}")
    return OK if not done.status or "cannot be" in done.err else Verdict("unclear", done.err.strip()[-300:])


def clock(rng: random.Random, bench: Bench) -> Verdict:
    """The clock of the machine jumps by hours or years, forwards and backwards."""
    place = bench.fresh(rng.choice(("data", "half")))
    seed = rng.random()

    def jump() -> None:
        from subquad import records

        jumps, real = random.Random(seed), time.time

        def jumping() -> float:
            return real() + (jumps.choice((0, 0, 3600, -3600, 10**8, -(10**8))) if jumps.random() < 0.5 else 0)

        def now() -> str:
            return datetime.datetime.fromtimestamp(jumping(), datetime.UTC).isoformat(timespec="seconds")

        time.time, records.now = jumping, now
        often()

    done = do(place, "train", *RUN, before=jump)
    if done.unclear or done.status:
        return Verdict("unclear" if done.unclear else "lost", done.unclear or done.err.strip()[-300:])
    return _runs_same(bench, place / "outputs")


def two(rng: random.Random, bench: Bench) -> Verdict:
    """The same command, or another one on the same folder, starts while one runs."""
    kind = rng.choice(("train", "prepare", "pack", "results", "sweep", "eval"))
    place = bench.fresh({"train": "half", "sweep": "data"}.get(kind, "done"))
    if kind == "prepare":
        shutil.rmtree(place / "data")
    if kind == "results":
        shutil.rmtree(place / "store")
    run = next((place / "outputs").rglob("checkpoints"), place / "x").parent
    first: tuple[str, ...] = {
        "train": ("train", *RUN), "prepare": ("prepare", *DATA), "pack": ("pack", str(run)),
        "results": ("results", "add", "outputs"), "sweep": ("train", "-m", *RUN, "seed=0,1"),
        "eval": ("eval", f"run={run}"),
    }[kind]  # fmt: skip
    second = rng.choice((first, ("train", *RUN)))
    one = Command(place / "one", *first, before=partial(_at, place))
    time.sleep(rng.uniform(0, 1.5))
    other = Command(place / "other", *second, before=partial(_at, place))
    for name, done in (("first", one.wait()), ("second", other.wait())):
        if (verdict := _clear(done, f"{name} of {kind}, {second[0]}")) is not None:
            return verdict
        if done.status and "Another process is training this run right now" not in done.err + done.out:
            return Verdict("lost", f"{name} of {kind}, {second[0]}: {done.err.strip()[-300:]}")
    if kind == "results":
        return same(tree(bench.base / "done" / "store"), tree(place / "store"), "lost")
    do(place, "train", *RUN)
    found = [path for name, path in runs(place / "outputs").items() if name.endswith("-s0")]
    return same(bench.twin, _without(numbers(found[0]), "model.safetensors")) if found else Verdict("lost", "no run")


def _without(state: dict[str, Any], name: str) -> dict[str, Any]:
    return state | {"files": [file for file in state["files"] if file != name]}


def _at(place: Path) -> None:
    os.chdir(place)
    os.environ |= {"SUBQUAD_OUTPUTS": str(place / "outputs"), "SUBQUAD_DATA": str(place / "data")}
    clean_commit()


def foreign(rng: random.Random, bench: Bench) -> Verdict:
    """A packed model, checkpoint or record that was made to run code does not run it."""
    place = bench.fresh("half" if (kind := rng.choice(("last.ckpt", "best.ckpt", "packed"))) == "last.ckpt" else "done")
    mark = place / "was-run"
    if kind == "packed":
        from safetensors import safe_open
        from safetensors.torch import save_file

        from subquad.training.bundle import _digest

        path = place / "packed.safetensors"
        with safe_open(path, "pt") as file:
            header, tensors = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        content = json.loads(header["subquad"])
        content["record"]["config"]["task"]["module"]["backbone"] = {
            "_target_": "os.system",
            "command": f"touch {mark}",
        }
        text = json.dumps(content)
        save_file(tensors, path, {"subquad": text, "sha256": _digest(text, tensors)})
        done = do(place, "train", "--help", before=partial(_load, path))
    else:
        import torch

        [path] = [p for p in (place / "outputs").rglob(kind) if "-s0" in str(p)]
        torch.save({"state_dict": {}, "evil": _Evil(str(mark))}, path)
        run = path.parents[1]
        done = do(
            place,
            *(("train", *RUN) if kind == "last.ckpt" else rng.choice((("eval", f"run={run}"), ("pack", str(run))))),
        )
    if mark.exists():
        return Verdict("wrong", f"{kind} ran code")
    return _clear(done, kind) or (OK if done.status else Verdict("wrong", f"{kind} was accepted"))


class _Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


KINDS = {
    f"place.{case.__name__}": case
    for case in (moved, names, changed_data, full_disk, read_only, clock, two, foreign)
}  # fmt: skip
