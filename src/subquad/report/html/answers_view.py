"""The part of a table's page that says which row to take, and which rows differ."""

from collections.abc import Iterable, Mapping
from typing import Any

from subquad.report.html.charts import choice, matrix
from subquad.results.answers import CHOICE, RULE, ColumnPairs, Need, Pick, answers, limits, need_pairs
from subquad.results.model import TableResults
from subquad.utils.display import counted


def answer_facts(part: TableResults, benches: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """For answers.html.j2; empty for a table without `needs`, or without two rows to compare."""
    pairs = need_pairs(part)
    if not pairs:
        return {}
    needs = answers(part, pairs, benches)
    costs = list(next((need.picks for need in needs if need.decides), {}))
    return {
        "rule": RULE, "choice": CHOICE, "costs": [f"<{cost}" for cost in costs],
        "needs": [_need(need, costs) for need in needs], "limits": limits(part, pairs),
        "scatter": choice(part), "matrix": matrix(list(pairs.values())), "tasks": list(pairs),
        "rows": [
            {
                "name": row.name, "own": row.name in part.table.added,
                "cells": [_counts(part, found, row.name) for found in pairs.values()],
            }
            for row in part.table.rows
        ],
    }  # fmt: skip


def _need(need: Need, costs: Iterable[str]) -> dict[str, Any]:
    return {
        "name": need.name, "text": need.text, "decides": need.decides, "equals": list(need.equals),
        "means": {row: f"{mean:.1f}" for row, mean in need.means.items()},
        "picks": [_pick(need.picks.get(cost)) for cost in costs],
    }  # fmt: skip


def _pick(pick: Pick | None) -> dict[str, str] | None:
    if pick is None:
        return None
    return {"row": pick.row, "text": pick.text, "href": f"#{pick.cell.anchor}" if pick.cell else ""}


def _counts(part: TableResults, found: ColumnPairs, row: str) -> dict[str, Any]:
    """The rows that a row is better and worse than, or how many of its seeds are there."""
    if row in found.unmeasured:
        seeds = part.cells[row, found.column].cell.seeds
        return {"missing": f"not measured ({found.unmeasured[row]} of {counted(seeds, 'seed')})"}
    return {"missing": "", "better": found.than(row, 1), "worse": found.than(row, -1)}
