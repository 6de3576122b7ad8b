"""The benchmarks that the documentation shows: one for each device."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from subquad import records
from subquad.results.store import FOLDER, check_source
from subquad.utils.atomic import atomic_write
from subquad.utils.errors import UserError

BENCHES = FOLDER / "bench"
"""The benchmarks that the documentation shows, as scripts/bench.py wrote them: one file for each device."""

_KEYS_OF_BENCH = {
    "settings.lengths": list, "settings.rounds": int, "machine.cpu": str, "versions.torch": str, "commit": str,
    "results": list,
}  # fmt: skip
_BENCH_FILE = TypeAdapter(Annotated[dict[str, Any], records.having(_KEYS_OF_BENCH)])


def add_bench(path: Path) -> None:
    """Keeps the results.json of a benchmark in place of the one of the same device.

    Raises UserError if it is none, if its source had changes that no commit has, or if it has several times a length.
    """
    try:
        content = _BENCH_FILE.validate_json(path.read_bytes())
    except ValidationError as error:
        reason = error.errors(include_input=False)[0]["msg"]
        raise UserError(f"{path} is not the results.json of a benchmark ({reason}); `make bench` writes one.") from None
    check_source(path, content["commit"])
    given = content["settings"]
    if several := [key for key in ("dims", "batches", "dtypes", "compiled") if len(given.get(key, ())) > 1]:
        raise UserError(f"{path} has several {several[0]}, and the documentation shows one; measure with one of them.")
    given.pop("output", None)  # a folder of that machine
    name = re.sub("[^a-z0-9]+", "-", bench_device(content).lower()).strip("-")
    with atomic_write(BENCHES / f"{name}.json") as place:
        place.write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")


def bench_device(bench: Mapping[str, Any]) -> str:
    """The name of the GPU, or of the processor, that a benchmark measured."""
    machine = bench["machine"]
    on_gpu = machine.get("gpu") and bench["settings"].get("device") != "cpu"
    return str(machine["gpu" if on_gpu else "cpu"])


def read_benches() -> list[dict[str, Any]]:
    """The kept benchmarks, those of processors first."""
    found = [_BENCH_FILE.validate_json(path.read_bytes()) for path in sorted(BENCHES.glob("*.json"))]
    return sorted(found, key=lambda bench: bench_device(bench) != bench["machine"]["cpu"])


def bench_times(
    results: Iterable[Mapping[str, Any]], level: str = "model", mode: str = "inference"
) -> dict[str, dict[int, float]]:
    """Milliseconds by attention and length; without lengths that do not fit into the memory."""
    times: dict[str, dict[int, float]] = {}
    for row in results:
        if (row["level"], row["mode"]) == (level, mode) and "median_s" in row:
            times.setdefault(row["attention"], {})[row["length"]] = 1e3 * row["median_s"]
    return times
