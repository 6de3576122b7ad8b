"""Disturbs commands in every way that we know and compares the result with undisturbed twins.

python -m tests.chaos                          # all cases, in outputs/chaos; typed again, it goes on where it stopped
python -m tests.chaos cases=0.1                # a tenth of them
python -m tests.chaos seconds=600              # as many as there is time for
python -m tests.chaos only=kill.train,fuzz.ts  # some kinds
python -m tests.chaos repeat=kill.train:17     # one case again; its files stay in <folder>/place

A case is chosen by its kind and number alone. It is `ok`, `lost` (something is missing or was done twice), `wrong`
(another number without a word) or `unclear` (a traceback, a hang, no sentence). Commands run in processes that are
forked after the imports.
"""

import collections
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos import damage, inputs, kills, places
from chaos.twin import Bench, Verdict

KINDS = {**kills.KINDS, **damage.KINDS, **places.KINDS, **inputs.KINDS}
COUNTS = {
    "kill.train": 300, "kill.sweep": 100, "kill.prepare": 150, "kill.evaluate": 100, "kill.pack": 60,
    "kill.results": 60, "kill.report": 30, "damage.resume": 400, "damage.finished": 600, "damage.report": 100,
}  # fmt: skip
"""Cases of a kind; 60 of the others. A case of fuzz.* is a hundred files or lists of overrides."""


def imports() -> None:
    """What commands import, so that forked processes have it."""
    import importlib

    for name in ("train", "eval", "pack", "prepare", "report", "results"):
        importlib.import_module(f"subquad.cli.{name}")
    for name in (
        "subquad.training.run", "subquad.training.evaluation", "subquad.training.bundle", "subquad.report.html.site",
        "subquad.results.collect", "matplotlib.pyplot", "pandas", "safetensors.torch", "sktime.datasets",
    ):  # fmt: skip
        importlib.import_module(name)


def decide(kind: str, number: int, bench: Bench) -> Verdict:
    """The verdict on a case."""
    try:
        return KINDS[kind](random.Random(f"{kind}:{number}"), bench)
    except Exception as error:  # the state of a run cannot be read: the case is not ok, whatever the reason
        return Verdict("lost", f"{type(error).__name__}: {error}"[:300])


def main() -> int:
    """Runs the cases that have no verdict yet; 1 if any is not ok."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    folder = Path(given.get("folder", "outputs/chaos")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder)
    started = time.monotonic()
    imports()
    bench.build()
    if "repeat" in given:
        kind, _, number = given["repeat"].partition(":")
        print(*decide(kind, int(number), bench))
        return 0
    only = given["only"].split(",") if "only" in given else [*KINDS]
    share = float(given.get("cases", 1))
    log = folder / "verdicts.jsonl"
    known = (
        {f"{v['kind']}:{v['number']}" for v in map(json.loads, log.read_text().splitlines())} if log.exists() else set()
    )
    planned = sorted(
        ((number + 0.5) / COUNTS.get(kind, 60), kind, number)
        for kind in only
        for number in range(max(1, round(share * COUNTS.get(kind, 60))))
    )  # fmt: skip
    for _, kind, number in planned:
        if f"{kind}:{number}" in known:
            continue
        if time.monotonic() - started > float(given.get("seconds", "inf")):
            break
        begun = time.monotonic()
        verdict = decide(kind, number, bench)
        entry = {"kind": kind, "number": number, "state": verdict.state, "why": verdict.why}
        with log.open("a") as file:
            file.write(json.dumps(entry | {"seconds": round(time.monotonic() - begun, 2)}) + "\n")
        if verdict.state != "ok":
            print(f"{verdict.state}: python -m tests.chaos repeat={kind}:{number}\n  {verdict.why}", flush=True)
    shutil.rmtree(bench.place, ignore_errors=True)
    return show(log)


def show(log: Path) -> int:
    """Prints a table of all verdicts."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for line in log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        counts[entry["kind"]][entry["state"]] += 1
    states = ("ok", "lost", "wrong", "unclear")
    print(f"{'kind':20}" + "".join(f"{state:>9}" for state in states))
    for kind in KINDS:
        if kind in counts:
            print(f"{kind:20}" + "".join(f"{counts[kind][state]:9}" for state in states))
    total = sum(counts.values(), collections.Counter())
    fuzzed = inputs.EXAMPLES * sum(sum(c.values()) for kind, c in counts.items() if kind.startswith("fuzz."))
    print(f"{'all':20}" + "".join(f"{total[state]:9}" for state in states) + f"   ({fuzzed:,} fuzzed inputs)")
    return int(total["ok"] < sum(total.values()))


if __name__ == "__main__":
    sys.exit(main())
