"""Files that are damaged, exchanged or lost are refused by name, or change no number."""

import json
import os
import random
import shutil
from functools import partial
from pathlib import Path

from chaos.commands import RUN, Done, clean_commit, do
from chaos.kills import same
from chaos.twin import OK, Bench, Verdict, numbers, packed, tree
from subquad import records


def _bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size + 1))


def _zeros(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content) + 1)
    content[start : start + 512] = bytes(len(content[start : start + 512]))
    path.write_bytes(content)


def _noise(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(rng.choice((0, 1, 100, 5000))))


def _tail(path: Path, rng: random.Random) -> None:
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.choice((1, 100))))


def _digit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if places := [i for i, byte in enumerate(content) if 48 <= byte < 58]:
        place = rng.choice(places)
        content[place] = 48 + (content[place] - 48 + rng.randrange(1, 10)) % 10
        path.write_bytes(content)


def _gone(path: Path, rng: random.Random) -> None:
    path.unlink()


def _folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to(rng.choice(("/nowhere", "/dev/null", str(path))))


def _swap(path: Path, rng: random.Random) -> None:
    """Another file of the same kind, from another run, cache or cell, or any other file."""
    top = next(
        parent for parent in path.parents if parent.name in ("outputs", "data", "store") or parent == path.parent.parent
    )
    others = [p for p in top.rglob("*") if p.is_file() and p != path and not p.name.startswith(".")]
    alike = [p for p in others if p.name == path.name]
    if others:
        shutil.copyfile(rng.choice(alike if alike and rng.random() < 0.8 else others), path)


DAMAGES = (_bit, _bit, _digit, _cut, _zeros, _noise, _tail, _gone, _folder, _link, _swap, _swap)


_STRANGE = (
    float("nan"),
    float("-inf"),
    10**400,
    -1,
    5,
    None,
    True,
    "",
    "x",
    "9" * 400,
    "a=b",
    "\ud800",
    [],
    {},
    [None],
    {"": {}},
)
"""Values for any key of a record."""


def _files(folder: Path, rng: random.Random) -> Path | None:
    """A file that we wrote; half of the time one that holds numbers."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink() and p.suffix != ".lock"]
    files = [p for p in files if p.name not in (".out", ".err")]
    told = [p for p in files if p.name in ("result.json", "metrics.csv", "best.ckpt", "last.ckpt", "meta.json")]
    return rng.choice(told if told and rng.random() < 0.5 else files) if files else None


def _told(done: Done, path: Path) -> Verdict | None:
    """The verdict on a command that ended with an error or a warning; None if it said nothing."""
    if done.unclear:
        return Verdict("unclear", f"{path.name}: {done.unclear}")
    return OK if done.status else None


def resume(rng: random.Random, bench: Bench) -> Verdict:
    """A run is resumed after a file of it, or of its data, was damaged."""
    place = bench.fresh("half")
    path = _files(place / rng.choice(("outputs", "outputs", "data")), rng)
    assert path is not None
    how = rng.choice(DAMAGES)
    how(path, rng)
    done = do(place, "train", *RUN)
    if (verdict := _told(done, path)) is not None:
        return verdict
    verdict = same(bench.twin, numbers(bench.run(place)))
    return verdict if verdict == OK else Verdict("wrong", f"{path.name} {how.__name__}: {verdict.why}")


def finished(rng: random.Random, bench: Bench) -> Verdict:
    """A file of a finished run or of its data is damaged; then the run is shown, evaluated, packed or kept."""
    expected_words = bench.shown
    place = bench.fresh("done")
    run = bench.run(place)
    path = _files(rng.choice((run, run, place / "data", place / "store")), rng)
    assert path is not None
    how = rng.choice(DAMAGES)
    how(path, rng)
    expected = bench.base / "done"
    command = rng.choice(("train", "eval", "pack", "results", "load"))
    what = f"{command} after {path.relative_to(place)} {how.__name__}"
    if command == "train":
        done = do(place, "train", *RUN)
        good = done.out == expected_words
    elif command == "eval":
        done = do(place, "eval", f"run={run}")
        good = (
            len(words := done.out.split()) == 4
            and words[1] == f"{bench.twin['record']['metrics']['test/accuracy']:.6f}"
        )
    elif command == "pack":
        done = do(place, "pack", str(run), "output=again.safetensors")
        again = place / "again.safetensors"
        good = again.exists() and packed(again) == packed(expected / "packed.safetensors")
    elif command == "results":
        done = do(place, "results", "add", "outputs", "again=true", before=clean_commit)
        good = tree(place / "store") == tree(expected / "store")
    else:
        bundle = place / "packed.safetensors"
        how(bundle, rng)
        what = f"load_pretrained after packed.safetensors {how.__name__}"
        done = do(place, "train", "--help", before=partial(_load, bundle))
        good = "loaded" in done.out and bundle.read_bytes() == (expected / "packed.safetensors").read_bytes()
    if (verdict := _told(done, path)) is not None:
        return verdict if verdict == OK else Verdict(verdict.state, f"{what}: {verdict.why}")
    return OK if good else Verdict("wrong", f"{what}: {done.out[-200:]}")


def _load(path: Path) -> None:
    from subquad import UserError, load_pretrained

    try:
        load_pretrained(path)
    except UserError as error:
        raise SystemExit(str(error)) from None
    print("loaded")
    raise SystemExit


def report(rng: random.Random, bench: Bench) -> Verdict:
    """A file below outputs is damaged; the pages are written, without it or with a word on it."""
    bench.build_pages()
    place = bench.fresh("pages")
    path = _files(place / "outputs", rng)
    assert path is not None
    how = rng.choice(DAMAGES)
    how(path, rng)
    done = do(place, "report", before=clean_commit, seconds=900)  # composing all tables again takes minutes
    what = f"{path.relative_to(place)} {how.__name__}"
    if done.unclear or done.status:
        return Verdict("unclear" if done.unclear else "lost", f"{what}: {done.unclear or done.err[-300:]}")
    expected, found = bench.pages, tree(place / "outputs" / "report")
    changed = [name for name in expected if expected[name] != found.get(name)]
    if not changed or path.name in done.err or str(path.parent.name) in done.err or path.name == "error.json":
        return OK
    return Verdict("wrong", f"{what}: {changed[:3]}")


def strange(rng: random.Random, bench: Bench) -> Verdict:
    """A record has a value that no run writes, under a checksum that fits; the pages are written."""
    bench.build_pages()
    place = bench.fresh("pages")
    path = rng.choice(sorted(place.glob("outputs/runs/**/*.json")))
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    holder, key = content, rng.choice(sorted(content))
    while isinstance(holder[key], dict) and holder[key] and rng.random() < 0.5:
        holder = holder[key]
        key = rng.choice(sorted(holder))
    was, holder[key] = holder[key], rng.choice(_STRANGE)
    path.write_text(json.dumps({**content, "checksum": records.fingerprint(content)}))
    done = do(place, "report", before=clean_commit, seconds=900)
    if done.unclear or done.status:
        what = f"{path.relative_to(place)} {key}: {was!r:.40} became {holder[key]!r:.40}"
        return Verdict("unclear" if done.unclear else "lost", f"{what}: {done.unclear or done.err[-300:]}")
    return OK


KINDS = {"damage.resume": resume, "damage.finished": finished, "damage.report": report, "damage.strange": strange}
