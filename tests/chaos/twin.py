"""The state of an outputs folder, to compare a disturbed one with its undisturbed twin."""

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from chaos.commands import DATA, RUN, Done, clean_commit, dies_at, do

State = Literal["ok", "lost", "wrong", "unclear"]
_MADE = re.compile(r"Made \S+ \S+( UTC)?|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\+00:00)?( UTC)?")


class Verdict(NamedTuple):
    """How a case ended, and why it was not ok."""

    state: State
    why: str = ""


OK = Verdict("ok")


def numbers(run: Path) -> dict[str, Any]:
    """What a run must have again: its history, the numbers of its record, its weights and its evaluations."""
    told = json.loads((run / "result.json").read_text())
    keys = ("fingerprint", "seed", "metrics", "baselines", "parameters", "steps", "data_fingerprint")
    evaluations = {p.stem: json.loads(p.read_text())["metrics"] for p in run.glob("evaluations/*.json")}
    return {
        "history": (run / "metrics.csv").read_text(),
        "record": {key: told[key] for key in keys},
        "best": weights(run / "checkpoints" / "best.ckpt"),
        "last": weights(run / "checkpoints" / "last.ckpt"),
        "evaluations": evaluations,
        "files": sorted(
            str(p.relative_to(run))
            for p in run.rglob("*")
            if p.is_file() and not p.name.startswith(".") and p.suffix != ".log"
        ),
    }


def weights(path: Path) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(torch.load(path, weights_only=True)["state_dict"].items()):
        digest.update(name.encode() + tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def packed(path: Path) -> dict[str, Any]:
    """The content of a packed model; the order of the entries of its header is random."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return {"header": file.metadata(), "names": sorted(file.keys())}


def tree(folder: Path) -> dict[str, str]:
    """Hashes of all files below a folder, without hidden and lock files; times of writing are left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not any(p.startswith(".") or p.endswith(".lock") for p in Path(name).parts):
            content = path.read_bytes()
            if path.suffix in (".html", ".jsonl"):
                content = _MADE.sub("", content.decode(errors="replace")).encode()
            found[name] = hashlib.sha256(content).hexdigest()
    return found


def runs(outputs: Path) -> dict[str, Path]:
    """Folders of finished runs by their name."""
    return {path.parent.name: path.parent for path in (outputs / "runs").rglob("result.json")}


def difference(expected: dict[str, Any], found: dict[str, Any]) -> str | None:
    """The first key in which two states differ."""
    for key in sorted({*expected, *found}):
        if key == "files" and (changed := {*expected[key]} ^ {*found[key]}):
            return f"files: {sorted(changed)}"
        if expected.get(key) != found.get(key):
            return f"{key}: {str(expected.get(key))[:80]} became {str(found.get(key))[:80]}"
    return None


@dataclass(frozen=True)
class Bench:
    """A folder with undisturbed twins, and the place in which each case runs; its path is the same for all cases."""

    base: Path

    @property
    def place(self) -> Path:
        return self.base / "place"

    def fresh(self, template: str) -> Path:
        """The place, with the content of a template."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.base / template, self.place, symlinks=True)
        return self.place

    def build(self) -> None:
        """Makes the templates: `data` has prepared data, `half` a killed run, `done` two runs and a packed model."""
        if (self.base / "ready").exists():
            return
        for name in ("data", "half", "done", "pages", "place"):
            shutil.rmtree(self.base / name, ignore_errors=True)
        place = self.place
        must(do(place, "prepare", *DATA))
        shutil.copytree(place, self.base / "data")
        do(place, "train", *RUN, before=dies_at(8))
        assert any(place.rglob("last.ckpt")), "the run was killed too early"
        assert not any(place.rglob("result.json")), "the run was killed too late"
        shutil.copytree(place, self.base / "half")
        self.fresh("data")
        for seed in (0, 1):
            must(do(place, "train", *RUN, f"seed={seed}", before=clean_commit))
        run = str(self.run(place))
        must(do(place, "pack", run, "output=packed.safetensors"))
        must(do(place, "results", "add", "outputs", before=clean_commit))
        shutil.copytree(place, self.base / "done")
        (self.base / "ready").touch()

    def build_pages(self) -> None:
        """Makes the template `pages`: `done` with the pages of a report and the compositions that make it fast."""
        if not (self.base / "pages").exists():
            place = self.fresh("done")
            for _ in range(2):
                must(do(place, "report", before=clean_commit, seconds=600))
            shutil.copytree(place, self.base / "pages")

    def run(self, place: Path, seed: int = 0) -> Path:
        [found] = (path for name, path in runs(place / "outputs").items() if name.endswith(f"-s{seed}"))
        return found

    @cached_property
    def twin(self) -> dict[str, Any]:
        """The numbers of the undisturbed run."""
        return numbers(self.run(self.base / "done"))

    @cached_property
    def shown(self) -> str:
        """What the command of the undisturbed run prints when it is typed again."""
        return must(do(self.fresh("done"), "train", *RUN)).out

    @cached_property
    def pages(self) -> dict[str, str]:
        return tree(self.base / "pages" / "outputs" / "report")


def must(done: Done) -> Done:
    assert done.status == 0, done.err
    return done
