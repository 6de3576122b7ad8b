"""The page of a benchmark: every setting's table and curves."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from subquad.measure.growth import DOES_NOT_FIT, NO_ATTENTION, crossover, exponent
from subquad.measure.speed_plot import curves
from subquad.report.html.page import figure_svg, write_page
from subquad.utils.display import three_digits

EXPLICIT, SOFTMAX = "softmax_explicit", "softmax"
GROUP = ("level", "mode", "dim", "batch", "dtype", "compiled")
"""The settings that distinguish the tables of the page."""

Draw = Callable[[Mapping[str, Mapping[int, float]], str], Any]
"""Draws costs by attention and length, and their unit: markup, or a Chart for a page of the report."""


def write_bench_page(path: Path, results: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    """Writes one HTML file. `results` are rows of scripts/bench.py, `facts` describe the machine and the benchmark."""
    write_page("bench.html.j2", path, bench_facts(results, facts, _picture))


def _picture(costs: Mapping[str, Mapping[int, float]], unit: str) -> Any:
    return figure_svg(curves(costs, unit, NO_ATTENTION))


def bench_facts(results: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], draw: Draw) -> dict[str, Any]:
    """For bench_body.html.j2."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in results:
        groups.setdefault(tuple(row[key] for key in GROUP), []).append(row)
    return {**facts, "groups": [_group(key, rows, draw) for key, rows in groups.items()]}


def _group(key: tuple[Any, ...], rows: Sequence[Mapping[str, Any]], draw: Draw) -> dict[str, Any]:
    level, mode, dim, batch, dtype, compiled = key
    lengths = sorted({row["length"] for row in rows})
    sides = {name: {row["length"]: row for row in rows if row["attention"] == name} for name in _names(rows)}
    fitting = {name: {n: row for n, row in side.items() if "median_s" in row} for name, side in sides.items()}
    seconds = {name: {n: row["median_s"] for n, row in side.items()} for name, side in fitting.items()}
    memory = {name: {n: row["peak_bytes"] / 2**20 for n, row in side.items()} for name, side in fitting.items()}
    milliseconds = {name: {n: 1e3 * s for n, s in line.items()} for name, line in seconds.items()}
    several = len(lengths) > 1
    return {
        "title": f"{level.capitalize()}, {mode}: d = {dim}, batch {batch}, {dtype}{how_compiled(compiled)}",
        "lengths": lengths,
        "speed": draw(milliseconds, "milliseconds") if several else None,
        "memory": draw(memory, "MiB") if several else None,
        "rows": [
            {
                "name": name.replace("_", " "),
                "reference": name in (EXPLICIT, SOFTMAX, NO_ATTENTION),
                "cells": [_cell(side[n], fitting, n) for n in lengths],
                "time_exponent": f"{exponent(seconds[name]):.2f}" if len(seconds[name]) > 1 else "",
                "memory_exponent": f"{exponent(memory[name]):.2f}" if len(memory[name]) > 1 else "",
                "pays_from": "" if name == SOFTMAX else _pays_from(seconds[name], seconds[SOFTMAX]),
            }
            for name, side in sides.items()
        ],
    }


def how_compiled(compiled: bool | str) -> str:
    """What a title says of torch.compile: nothing, that it was used, or in which mode."""
    return f", compiled ({compiled})" if isinstance(compiled, str) else ", compiled" if compiled else ""


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["attention"] for row in rows))


def _cell(row: Mapping[str, Any], sides: Mapping[str, Mapping[int, Mapping[str, Any]]], n: int) -> dict[str, str]:
    if "median_s" not in row:
        return dict.fromkeys(("speedup", "range", "ceiling", "share"), "") | dict.fromkeys(("ms", "mib"), DOES_NOT_FIT)
    low, high = row["speedup_range"] or ("", "")
    explicit = sides[EXPLICIT].get(n)
    ceiling = sides.get(NO_ATTENTION, {}).get(n)
    return {
        "ms": three_digits(1e3 * row["median_s"]),
        "speedup": f"{row['speedup_over_softmax']:.2f}" if low else "",
        "range": f"{low:.2f} to {high:.2f} times as fast as softmax" if low else "",
        "ceiling": f"{ceiling['median_s'] / row['median_s']:.0%}" if ceiling else "",
        "mib": three_digits(row["peak_bytes"] / 2**20),
        "share": f"{row['peak_bytes'] / explicit['peak_bytes']:.1%}" if explicit else "",
    }


def _pays_from(seconds: Mapping[int, float], softmax: Mapping[int, float]) -> str:
    """From how many tokens a row is faster than softmax; empty if memory was too small for one of the two."""
    if not seconds or seconds.keys() != softmax.keys():
        return ""
    length = crossover(seconds, softmax)
    return "-" if length is None else f"{round(length):,}"
