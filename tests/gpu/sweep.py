"""Runs every attention and every backbone on fake CUDA and prints what should not happen on a GPU.

python -m tests.gpu.sweep [NAME ...]    # all choices, or some
python -m tests.gpu.sweep --part 0/2    # every second of them
python -m tests.gpu.sweep --fewer       # one choice of each class, and all backbones, in two of twelve settings
"""

import tests.gpu.flex  # noqa: F401  # isort: skip  the fake device comes before torch

import argparse
import gc
import itertools
import json
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from tests.gpu.models import Model, attention, attentions, backbone, backbones, first_of_classes, patterns
from tests.gpu.trace import DTYPES, traced, where

ROWS = 2
DIM = 480
"""Of an attention with 8 heads: widths of 60, which fused kernels do not take as they are."""
LENGTH = 961
"""Tokens of an attention: more than any window or block, and no multiple of one."""
LENGTH_OF_BACKBONES = 225


class Setting(NamedTuple):
    precision: str
    padded: bool
    dropout: float


SETTINGS = [Setting(*values) for values in itertools.product(DTYPES, (False, True), (0.0, 0.1))]
FEWER = [s for s in SETTINGS if s.precision == "bf16-mixed" and s.padded == (s.dropout > 0)]


def problems(model: nn.Module, inputs: tuple[Any, ...], setting: Setting) -> Iterator[str]:
    """What should not happen on a GPU, in training and in evaluation."""
    for train in (True, False) if setting.padded and setting.dropout else (True,):
        try:
            trace, without = traced(model, inputs, setting.precision, train)
        except Exception as error:
            yield f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]} ({where(error)})"
            continue
        yield from trace.findings
        yield from (f"no gradient: {name}" for name in without)


def models(names: list[str]) -> Iterator[tuple[str, Model]]:
    """The chosen models: attentions in each form that they have, and backbones."""
    for name in attentions():
        if not names or name in names:
            for pattern in patterns(name):
                yield f"{name} ({pattern.value})", attention(name, pattern, LENGTH, DIM)
    for name in backbones():
        if not names or name in names:
            yield name, backbone(name, LENGTH_OF_BACKBONES, layers=1)


def sweep(names: list[str], settings: list[Setting], part: int, parts: int) -> dict[str, dict[str, list[str]]]:
    """For each model and problem, the settings in which it occurs."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, model in itertools.islice(models(names), part, None, parts):
        begun, of_model = time.perf_counter(), defaultdict(list)
        gc.freeze()  # a trace collects garbage first
        built = {rate: model.build(rate) for rate in {setting.dropout for setting in settings}}
        for setting in settings:
            inputs = model.inputs(built[setting.dropout], ROWS, setting.padded)
            for problem in problems(built[setting.dropout], inputs, setting):
                of_model[problem].append(
                    f"{setting.precision}{', padded' * setting.padded}{', dropout' * (setting.dropout > 0)}"
                )
        found[name] = dict(of_model)
        for problem, of_problem in of_model.items():
            print(f"{name}: {problem} [{'; '.join(dict.fromkeys(of_problem))}]", file=sys.stderr)
        print(f"{name}: {time.perf_counter() - begun:.1f} s", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="choices of attention or backbone; by default all")
    parser.add_argument("--part", default="0/1", help="which part of how many")
    parser.add_argument("--fewer", action="store_true", help="the first choice of each class, in a few settings")
    parser.add_argument("--json", action="store_true", help="print JSON too")
    args = parser.parse_args()
    if args.fewer:
        args.names += [*first_of_classes(), *backbones()]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = sweep(args.names, FEWER if args.fewer else SETTINGS, *map(int, args.part.split("/")))
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
