"""Which mechanism to take, and what the arena cannot say, as paragraphs of docs/arena.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from subquad.results.answers import CHOICE, RULE, Need, Pick, answers, limits, need_pairs
from subquad.results.model import TableResults


def answers_text(part: TableResults, benches: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The paragraphs by name: answers, a table of Markdown with its rule; limits, a list."""
    pairs = need_pairs(part)
    needs = answers(part, pairs, benches)
    costs = next(list(need.picks) for need in needs if need.decides)
    lines = [
        f"| if | rows that are not worse than the best | {' | '.join(costs)} |",
        f"|---|---|{'---|' * len(costs)}",
        *(f"| {need.text} ({need.name}) | {_rows(need)} | {' | '.join(_cells(need, costs))} |" for need in needs),
    ]
    return {
        "answers": "\n".join(lines), "rule": f"{CHOICE} {RULE}",
        "limits": "\n".join(f"- {sentence}" for sentence in limits(part, pairs)),
    }  # fmt: skip


def _rows(need: Need) -> str:
    if not need.decides:
        return f"{len(need.equals)} of {len(need.means)}, one of them the model without attention: no answer"
    return ", ".join(f"{row} {need.means[row]:.1f}" if row in need.means else row for row in need.equals) or "none"


def _cells(need: Need, costs: Sequence[str]) -> list[str]:
    return [_pick(need.picks.get(cost), need) for cost in costs]


def _pick(pick: Pick | None, need: Need) -> str:
    if pick is None:
        return "not measured" if need.decides and need.equals else ""
    return f"{pick.row}{f', {pick.text}' if pick.text else ''}"
