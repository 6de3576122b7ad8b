"""A comparison of attentions in the terminal and as a page."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from subquad.planning.comparison import STEP, ComparedRow, ComparisonResult
from subquad.report.html.page import figure_svg, write_page
from subquad.results.pairs import Pair
from subquad.utils.display import counted, from_here, three_digits


def show(result: ComparisonResult, console: Console) -> None:
    """Prints the rows, the best first, and a sentence on what differs."""
    grid = Table("attention", _metric(result), "95 % interval", "ms a step", "peak MiB", "rate")
    for row in _rows(result):
        grid.add_row(*(row[key] for key in ("name", "mean", "interval", "milliseconds", "mebibytes", "rate")))
    for name, score in result.baselines.items():
        grid.add_row(f"[dim]{name}", f"[dim]{_number(result, score)}")
    console.print(grid)
    if part := result.facts.get(STEP):
        console.print(f"{STEP.capitalize()}: {part}", soft_wrap=True)
    console.print(verdict(result), soft_wrap=True, markup=False)
    console.print(f"A model of the first row: {from_here(result.rows[0].run)}", soft_wrap=True, markup=False)


def write(result: ComparisonResult) -> Path:
    """Writes the page; returns its path."""
    names = list(dict.fromkeys(f"{rate:g}" for row in result.rows for rate in row.search))
    page = result.folder / "index.html"
    write_page("comparison.html.j2", page, {
        "title": result.title, "facts": list(result.facts.items()), "verdict": verdict(result),
        "rows": _rows(result), "figure": figure_svg(_figure(result)),
        "baselines": [(name, _number(result, score)) for name, score in result.baselines.items()],
        "pairs": [_pair(result, pair) for pair in sorted(result.pairs, key=lambda pair: pair.corrected)],
        "metric": _metric(result), "rates": names, "left_out": list(result.left_out.items()),
        "search": [
            (_name(row), [(f"{r:g}", _number(result, s), r == row.rate) for r, s in row.search.items()])
            for row in result.rows
        ],
        "seeds": [(row.name, [_number(result, value) for value in row.values.values()]) for row in result.rows],
        "models": [from_here(row.run) for row in result.rows],
    })  # fmt: skip
    return page


def verdict(result: ComparisonResult) -> str:
    """Which differences are beyond chance, in a sentence or two, and which rows have learned nothing."""
    rows = _unlearned(result)
    if not rows:
        return _differences(result)
    names = f"Not better than the {_best_baseline(result)[0]} beyond chance: {', '.join(rows)}."
    if len(rows) == len(result.rows):
        return f"{names} Their order means nothing; other rates= or more hours= may help."
    return f"{_differences(result)} {names}"


def _unlearned(result: ComparisonResult) -> list[str]:
    """The rows whose intervals do not lie beyond the best score without a model."""
    sign, (_, best) = _sign(result), _best_baseline(result)
    return [row.name for row in result.rows if best is not None and sign * (row.mean - best) <= row.half_width]


def _best_baseline(result: ComparisonResult) -> tuple[str, float | None]:
    sign = _sign(result)
    return max(result.baselines.items(), key=lambda item: sign * item[1], default=("", None))


def _sign(result: ComparisonResult) -> int:
    return -1 if result.lower_is_better else 1


def _differences(result: ComparisonResult) -> str:
    if not (real := [pair for pair in result.pairs if pair.differs]):
        pairs = counted(len(result.pairs), "pair")
        return (
            f"No difference between two rows is beyond chance (5 %, corrected for {pairs}). "
            "More seeds=, more test rows or more hours= can show smaller ones."
        )
    ahead = [row.name for row in result.rows if _better(result, row.name)]
    lines = [f"{name} is better than {', '.join(_better(result, name))}." for name in ahead]
    return " ".join(lines) + " All else is within chance." * (len(real) < len(result.pairs))


def _better(result: ComparisonResult, name: str) -> list[str]:
    """The rows that a row is better than, beyond chance; none if no row has learned anything."""
    if len(_unlearned(result)) == len(result.rows):
        return []
    signed = [(p.a, p.b) if _sign(result) * p.difference > 0 else (p.b, p.a) for p in result.pairs if p.differs]
    return [b for a, b in signed if a == name]


def _metric(result: ComparisonResult) -> str:
    return f"{result.metric}, %" if result.metric == "accuracy" else result.metric


def _rows(result: ComparisonResult) -> list[dict[str, Any]]:
    return [{"name": _name(row), "better": _better(result, row.name)} | _texts(result, row) for row in result.rows]


def _name(row: ComparedRow) -> str:
    return "no attention" if row.name == "none" else row.name


def _texts(result: ComparisonResult, row: ComparedRow) -> dict[str, str]:
    low, high = _interval(result, row)
    return {
        "mean": _number(result, row.mean), "interval": f"{_number(result, low)} to {_number(result, high)}",
        "milliseconds": three_digits(1000 * row.cost["seconds"]), "mebibytes": three_digits(row.cost["bytes"] / 2**20),
        "parameters": f"{row.cost['parameters']:,.0f}", "rate": f"{row.rate:g}",
    }  # fmt: skip


def _interval(result: ComparisonResult, row: ComparedRow) -> tuple[float, float]:
    low, high = row.mean - row.half_width, row.mean + row.half_width
    return (max(0.0, low), min(100.0, high)) if result.metric == "accuracy" else (low, high)


def _pair(result: ComparisonResult, pair: Pair) -> dict[str, Any]:
    return {
        "names": f"{pair.a} - {pair.b}", "difference": f"{_number(result, pair.difference)}",
        "interval": f"{_number(result, pair.low)} to {_number(result, pair.high)}",
        "p": f"{pair.p:.3g}", "corrected": f"{pair.corrected:.3g}", "differs": pair.differs,
    }  # fmt: skip


def _number(result: ComparisonResult, value: float | None) -> str:
    if value is None:
        return "failed"
    return f"{value:.1f}" if result.metric == "accuracy" else f"{value:.4g}"


def _figure(result: ComparisonResult) -> Any:
    """Score with its interval against the time of a step, one point a row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for row in result.rows:
        place = row.cost["seconds"] * 1000, row.mean
        low, high = _interval(result, row)
        axes.errorbar(*place, yerr=[[row.mean - low], [high - row.mean]], fmt="o", capsize=3, markersize=4)
        axes.annotate(_name(row), place, xytext=(5, 4), textcoords="offset points", fontsize=8)
    for name, score in result.baselines.items():
        axes.axhline(score, color="0.5", linestyle="--", linewidth=1)
        axes.annotate(name, (0.01, score), xycoords=("axes fraction", "data"), fontsize=8, va="bottom")
    axes.set_xlim(0)
    axes.set(xlabel="milliseconds of a training step", ylabel=f"test {_metric(result)}")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
