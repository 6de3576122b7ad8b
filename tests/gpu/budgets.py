"""Launches, dispatched operators, peak memory and estimated time of every mechanism on a GPU, beside the recorded ones.

    python -m tests.gpu.budgets [NAME ...]         # a table: recorded -> now
    python -m tests.gpu.budgets NAME --lines       # launches of each line of the source
    python -m tests.gpu.budgets --record           # rewrites tests/golden/gpu_budgets.json
    python -m tests.gpu.budgets yoso --tokens 1024 --rows 32 --precision 32 --full --dropout 0   # another size

Milliseconds are an estimate for an H100 (see `trace.Trace`). Nothing here runs on a GPU.
"""

import tests.gpu.flex  # noqa: F401  # isort: skip  the fake device comes before torch

import argparse
import gc
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from subquad.config.compose import standalone_backbones
from tests.gpu.flex import densities_of, find_densities
from tests.gpu.models import Model, attention, attentions, backbone, patterns
from tests.gpu.trace import DTYPES, Trace, traced

GOLDEN = Path(__file__).parents[1] / "golden" / "gpu_budgets.json"


class Setting(NamedTuple):
    train: bool
    tokens: int
    rows: int
    padded: bool
    dropout: float
    precision: str = "bf16-mixed"


SETTINGS = {
    "training": Setting(train=True, tokens=2048, rows=8, padded=True, dropout=0.1),
    "evaluation": Setting(train=False, tokens=1024, rows=32, padded=False, dropout=0.1),
    "inference fp32": Setting(train=False, tokens=1024, rows=8, padded=False, dropout=0.1, precision="32"),
}
"""Dropout and padding, as in the recipes of LRA; neither, with which flex attention runs; and no autocast, whose casts
hide what a mechanism itself launches."""


def cost(model: Model, setting: Setting) -> dict[str, float]:
    """Launches, peak memory in MiB and estimated milliseconds of a pass."""
    trace = trace_of(model, setting)
    return {
        "launches": trace.launches,
        "dispatches": trace.dispatches,
        "peak_mib": round(trace.peak / 2**20, 1),
        "ms": float(f"{trace.seconds * 1e3:.3g}"),
    }


def trace_of(model: Model, setting: Setting) -> Trace:
    built = model.build(setting.dropout)
    gc.freeze()  # a trace collects garbage first
    inputs = model.inputs(built, setting.rows, setting.padded)
    with densities_of([]):
        trace, _ = traced(built, inputs, setting.precision, setting.train)
    if trace.by_operator["flex_attention"]:
        with densities_of(find_densities(built, model.inputs(built, 1, setting.padded))):
            trace, _ = traced(built, inputs, setting.precision, setting.train)
    return trace


def models(names: list[str], tokens: int) -> Iterator[tuple[str, Model]]:
    """One layer of each attention (two where it passes something on) of width 512 with 8 heads; each encoder."""
    for name in attentions():
        if not names or name in names:
            yield name, attention(name, patterns(name)[0], tokens)
    for name in standalone_backbones():
        if not names or name in names:
            yield name, backbone(name, tokens, layers=1)


Costs = dict[str, dict[str, dict[str, float]]]
"""By name, setting and quantity."""


def costs(names: list[str], settings: dict[str, Setting]) -> Costs:
    """The costs of the chosen mechanisms."""
    found: Costs = {}
    for of_setting, setting in settings.items():
        for name, model in models(names, setting.tokens):
            begun = time.perf_counter()
            found.setdefault(name, {})[of_setting] = cost(model, setting)
            print(f"{name}, {of_setting}: {time.perf_counter() - begun:.1f} s", file=sys.stderr, flush=True)
    return found


def table(recorded: Costs, now: Costs) -> str:
    """One line for each mechanism and setting: recorded -> now where they differ."""
    lines = [f"{'':34}{'launches':>20}{'dispatches':>20}{'peak MiB':>24}{'ms (estimate)':>24}"]
    for name, of_name in now.items():
        for setting, found in of_name.items():
            before = recorded.get(name, {}).get(setting, {})
            cells = [
                f"{found[key]:g}" if before.get(key, found[key]) == found[key] else f"{before[key]:g} -> {found[key]:g}"
                for key in found
            ]
            lines.append(f"{f'{name}, {setting}':34}{cells[0]:>20}{cells[1]:>20}{cells[2]:>24}{cells[3]:>24}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="choices of attention or backbone; by default all")
    parser.add_argument("--record", action="store_true", help=f"rewrite {GOLDEN.name}")
    parser.add_argument("--lines", action="store_true", help="print the launches of each line of the source")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--tokens", type=int, help="another length, for a setting of its own")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--precision", choices=DTYPES, default="bf16-mixed")
    parser.add_argument("--full", action="store_true", help="without padding")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--evaluate", action="store_true", help="without a backward pass")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    settings = SETTINGS
    if args.tokens:
        own = Setting(not args.evaluate, args.tokens, args.rows, not args.full, args.dropout, args.precision)
        settings = {f"{args.rows} x {args.tokens}": own}
    if args.lines:
        for of_setting, setting in settings.items():
            for name, model in models(args.names, setting.tokens):
                print(f"{name}, {of_setting}")
                for line, count in trace_of(model, setting).by_line.most_common():
                    print(f"{count:6}  {line}")
        return
    now = costs(args.names, settings)
    recorded = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if args.record:
        kept = recorded if args.names else {}
        GOLDEN.write_text(json.dumps(dict(sorted((kept | now).items())), indent=1) + "\n")
    print(json.dumps(now) if args.json else table(recorded, now))


if __name__ == "__main__":
    main()
