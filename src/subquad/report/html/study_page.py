"""The page of a search of settings: its best trial, each setting against the value, and all trials."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from subquad.report.html.page import figure_svg, write_page


def write_study_page(path: Path, study: Any, keys: Sequence[str], fixed: Sequence[str], metric: str) -> None:
    """Writes one HTML file. `study` is Optuna's, `keys` what is searched, `fixed` the overrides of all trials."""
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.params]
    done = [trial for trial in trials if trial.state.name == "COMPLETE"]
    sign = -1 if study.direction.name == "MAXIMIZE" else 1
    order = sorted(
        trials,
        key=lambda t: (t.state.name != "COMPLETE", t.value is None, t.number if t.value is None else sign * t.value),
    )
    best = order[0] if done else None
    write_page("study.html.j2", path, {
        "name": study.study_name, "metric": metric, "fixed": " ".join(fixed), "keys": keys,
        "best": None if best is None else _row(best, keys, best),
        "figure": figure_svg(_figure(done, keys, metric)) if len(done) > 1 else None,
        "again": sum("failure" not in t.user_attrs and t.state.name == "FAIL" for t in trials),
        "rows": [_row(trial, keys, best) for trial in order],
    })  # fmt: skip


def _row(trial: Any, keys: Sequence[str], best: Any) -> dict[str, Any]:
    failed = "failed" if "failure" in trial.user_attrs else "interrupted"
    states = {"COMPLETE": "finished", "PRUNED": "stopped early", "FAIL": failed, "RUNNING": "running"}
    last = trial.last_step
    value = trial.value if trial.state.name == "COMPLETE" else trial.intermediate_values.get(last)
    return {
        "number": trial.number, "state": states.get(trial.state.name, "waiting"), "is_best": trial is best,
        "value": "" if value is None else f"{value:.4g}", "cells": [_text(trial.params.get(key, "")) for key in keys],
        "seconds": "" if trial.duration is None else f"{trial.duration.total_seconds():.0f}",
        "remark": trial.user_attrs.get("failure", "" if last is None else f"last validation at step {last:,}"),
    }  # fmt: skip


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _as_numbers(values: Sequence[Any]) -> Sequence[Any]:
    """Choices are texts; where all of them are numbers, their numbers."""
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        return values


def _figure(done: Sequence[Any], keys: Sequence[str], metric: str) -> Any:
    """A panel for each setting: its values against the metric; numbers that span decades on a logarithmic axis."""
    from matplotlib.figure import Figure

    shown = list(keys)[:6]
    figure = Figure(figsize=(2.6 * max(len(shown), 2), 2.8), layout="constrained")
    for axes, key in zip(figure.subplots(1, len(shown), sharey=True, squeeze=False)[0], shown, strict=True):
        values = _as_numbers([trial.params[key] for trial in done])
        numbers = all(isinstance(value, int | float) for value in values)
        names = [] if numbers else sorted(set(values))
        axes.scatter(values if numbers else list(map(names.index, values)), [trial.value for trial in done], s=18)
        if names:
            axes.set_xticks(range(len(names)), names)
        if numbers and min(values) > 0 and max(values) > 20 * min(values):
            axes.set_xscale("log")
        axes.set_xlabel(key)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel(metric)
    return figure
