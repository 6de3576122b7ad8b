"""The page of a benchmark: every setting's table and curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from subquad.measure.benchmark import NO_ATTENTION
from subquad.measure.scaling import crossover, exponent
from subquad.measure.speed_plot import curves
from subquad.report.html.page import figure_svg, write_page

EXPLICIT, SOFTMAX = "softmax_explicit", "softmax"
GROUP = ("level", "mode", "dim", "batch", "dtype", "compiled")
"""The settings that distinguish the tables of the page."""


def write_bench_page(path: Path, results: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    """Writes one HTML file. `results` are rows of scripts/bench.py, `facts` describe the machine and the benchmark."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in results:
        groups.setdefault(tuple(row[key] for key in GROUP), []).append(row)
    write_page("bench.html.j2", path, {**facts, "groups": [_group(key, rows) for key, rows in groups.items()]})


def _group(key: tuple[Any, ...], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    level, mode, dim, batch, dtype, compiled = key
    lengths = sorted({row["length"] for row in rows})
    sides = {name: {row["length"]: row for row in rows if row["attention"] == name} for name in _names(rows)}
    seconds = {name: {n: row["median_s"] for n, row in side.items()} for name, side in sides.items()}
    memory = {name: {n: row["peak_bytes"] / 2**20 for n, row in side.items()} for name, side in sides.items()}
    milliseconds = {name: {n: 1e3 * s for n, s in line.items()} for name, line in seconds.items()}
    several = len(lengths) > 1
    return {
        "title": f"{level.capitalize()}, {mode}: d = {dim}, batch {batch}, {dtype}{', compiled' if compiled else ''}",
        "lengths": lengths,
        "speed": figure_svg(curves(milliseconds, "milliseconds", NO_ATTENTION)) if several else None,
        "memory": figure_svg(curves(memory, "MiB", NO_ATTENTION)) if several else None,
        "rows": [
            {
                "name": name.replace("_", " "),
                "reference": name in (EXPLICIT, SOFTMAX, NO_ATTENTION),
                "cells": [_cell(side[n], sides, n) for n in lengths],
                "time_exponent": f"{exponent(seconds[name]):.2f}" if several else "",
                "memory_exponent": f"{exponent(memory[name]):.2f}" if several else "",
                "pays_from": "" if name == SOFTMAX else _tokens(crossover(seconds[name], seconds[SOFTMAX])),
            }
            for name, side in sides.items()
        ],
    }


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["attention"] for row in rows))


def _cell(row: Mapping[str, Any], sides: Mapping[str, Mapping[int, Mapping[str, Any]]], n: int) -> dict[str, str]:
    low, high = row["speedup_range"]
    share = row["peak_bytes"] / sides[EXPLICIT][n]["peak_bytes"]
    ceiling = sides.get(NO_ATTENTION)
    return {
        "ms": f"{1e3 * row['median_s']:.3g}",
        "speedup": f"{row['speedup_over_softmax']:.2f}",
        "range": f"{low:.2f} to {high:.2f} times as fast as softmax",
        "ceiling": f"{ceiling[n]['median_s'] / row['median_s']:.0%}" if ceiling else "",
        "mib": f"{row['peak_bytes'] / 2**20:.3g}",
        "share": f"{share:.1%}",
    }


def _tokens(length: float | None) -> str:
    return "-" if length is None else f"{round(length):,}"
