"""An outputs folder with runs of two small tables, and the pages that are made of it."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from runs import FACTS

from subquad import records
from subquad.report.html.site import write_site
from subquad.results import collect as gathering
from subquad.results import measurement_cache
from subquad.results.cells import RunIndex
from subquad.results.model import Content
from subquad.results.table import Table, load

ODD = '<i>R&D</i> 50%_x, "#1"'
ONE = f"""
title: Two rows & <more>
source: Doe et al. 2024, https://example.org/x, Table 1
seeds: 2
overrides: [task=digits, recipe=small_vit]
metric: {{name: test/accuracy, label: accuracy, scale_by: 100, unit: "%"}}
columns:
  Accuracy: []
  Width:
    measure: {{_target_: subquad.results.measures.setting, key: backbone.dim}}
    metric: {{name: value, scale_by: 1, better: equal}}
  Name: {{measure: {{_target_: subquad.results.measures.setting, key: task.name}}}}
rows:
  Softmax: [attention=softmax]
  DBA: {{overrides: [attention=dba], from_prior_work: true, note: "Doubtful: <b> is no tag | or so."}}
  {json.dumps(ODD)}: [attention=luna]
  Broken: [attention=linformer]
  Gone: {{unavailable: Nobody has it & never will.}}
  Mean: {{mean: [Softmax, DBA]}}
printed:
  Softmax: 90.0±1.0 192 -
  DBA: 70.0±0.1 1 digits
  {json.dumps(ODD)}: 50.0 1 x_y
  Broken: 50.0 1 x
  Gone: 40.0 1 x
  Mean: 80.0 2 -
"""
OTHER = """
title: One number
source: Roe 2023, https://example.org/y, Table 7
seeds: 1
overrides: [task=digits, recipe=small_vit]
metric: {name: test/accuracy, label: accuracy, scale_by: 100, unit: "%"}
columns: {Accuracy: [attention=performer]}
rows: {Performer: []}
printed: {Performer: "61.0"}
"""


@dataclass
class Made:
    """Where things are."""

    outputs: Path
    pages: Path
    content: Content
    tables: dict[str, Table]
    words: tuple[str, ...]
    folders: dict[str, Path]

    def html(self, name: str) -> str:
        """The text of a page."""
        return (self.pages / name).read_text()

    def all(self) -> dict[str, str]:
        """Every page by its path."""
        return {p.relative_to(self.pages).as_posix(): p.read_text() for p in sorted(self.pages.rglob("*.html"))}


def finish(folder: Path, accuracy: float, seed: int = 0, attention: str = "softmax", **changes: object) -> None:
    """Leaves in a folder what a finished run leaves."""
    synthetic = changes.pop("synthetic", False)
    record = records.Record(**{
        "fingerprint": folder.name[:12], "seed": seed, "task": "digits", "attention": attention, "recipe": "small_vit",
        "protocol": "paper", "scale": "paper",
        "metrics": {"test/accuracy": accuracy, "val/accuracy": 0.9, "val/loss": 0.5},
        "baselines": {"majority class": 0.101}, "parameters": 1234567, "steps": 40, "wall_seconds": 75.0,
        "peak_memory_mib": 321.0, "peak_memory_of": "resident set", "data_fingerprint": "d", "tags": [],
        "machine": {"cpu": "A <CPU>", "cores": 2, "threads": 2, "gpu": None, "system": "Linux"},
        "versions": {"torch": "2"}, "commit": "abc123", "finished": f"2026-01-0{seed + 1}T10:00:00+00:00",
        "config": FACTS["config"] | {"data": {"synthetic": synthetic}, "deep": {"key": [1, "</pre>"]}},
    } | changes)  # fmt: skip
    records.write(record, folder)
    rows = [f"{step},{0.5 + step / 100},{1 / step},{2 / step}" for step in range(1, 41)]
    (folder / "metrics.csv").write_text("\n".join(["step,val/accuracy,train/loss,val/loss", *rows]))
    (folder / ".hydra").mkdir(exist_ok=True)
    (folder / ".hydra" / "overrides.yaml").write_text(
        json.dumps(["task=digits", f"attention={attention}", "tags=[a b]"])
    )


@cache
def build(base: Path) -> Made:
    """Two seeds of Softmax, one of DBA, one at laptop scale, one of made-up data, a run of nobody, and broken files."""
    base.mkdir()
    outputs, words = base / "outputs", (f"paths.outputs={base}/outputs",)
    for name, text in (("one", ONE), ("other", OTHER)):
        (base / f"{name}.yaml").write_text(text)
    tables = {"one/1": load(base / "one.yaml", "one/1"), "other/7": load(base / "other.yaml", "other/7")}
    one = tables["one/1"]

    known = {scope: RunIndex([*scope, *words]) for scope in ((), ("scale=laptop",), ("scale=smoke", "data=synthetic"))}

    def folder(row: str, seed: int, *scope: str) -> Path:
        return known[scope].spec(one.cells[row, "Accuracy"].overrides, seed).folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUBQUAD_OUTPUTS", str(outputs))
        patch.setattr("subquad.results.cells.load_table", tables.__getitem__)
        folders = {
            "softmax0": folder("Softmax", 0), "softmax1": folder("Softmax", 1), "dba0": folder("DBA", 0),
            "laptop": folder(ODD, 0, "scale=laptop"),
            "synthetic": folder("Softmax", 0, "scale=smoke", "data=synthetic"),
            "own": outputs / "runs" / 'mine & "<u>yours</u>' / "000-s0", "broken": folder("DBA", 1),
            "failed": folder("Broken", 1), "open": folder(ODD, 1),
        }  # fmt: skip
        finish(folders["softmax0"], 0.891)
        finish(folders["softmax1"], 0.907, seed=1)
        finish(folders["dba0"], 0.5, attention="dba")
        finish(folders["laptop"], 0.333, attention="luna", scale="laptop")
        finish(folders["synthetic"], 0.123, scale="smoke", synthetic=True)
        finish(folders["own"], 0.777, attention="<script>alert(1)</script>", task="d\"'&")
        for name in ("broken", "failed", "open"):
            (folders[name] / ".hydra").mkdir(parents=True)
        (folders["broken"] / records.RESULT).write_text('{"seed": 1,')
        (folders["dba0"] / "metrics.csv").write_text("step,val/accuracy\nnot a number,1\n")
        records.write_error("There is no <folder>; make it.", "", folders["failed"])
        measurement_cache.measure(one.cells["Softmax", "Width"], known[()])
        measurement_cache.measure(one.cells["DBA", "Name"], known[()])
        (outputs / "measured" / "garbled.json").write_text("[")
        for path in ("figures/dba/4/4.png", "bench/2026-01-01/index.html"):
            (outputs / path).parent.mkdir(parents=True)
            (outputs / path).write_bytes(b"<!doctype html><title>x</title>")
        facts = {"overrides": ["scale=laptop", "paths.data=/x"], "numbers": {"missing": ["1 run is missing."]}}
        (outputs / "figures/dba/4/4.json").write_text(json.dumps(facts))
        content = gathering.gather(list(tables), words)
    write_site(base / "pages", content)
    return Made(outputs, base / "pages", content, tables, words, folders)
