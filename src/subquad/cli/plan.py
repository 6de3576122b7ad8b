"""Estimates what a table costs before it is run: runs, hours, disk, downloads, and missing data.

python scripts/plan.py table=dba/2
python scripts/plan.py table=all scale=laptop
python scripts/plan.py table=primal_dual/9 rows=[BasicMotions] measure=true

Times are those of finished runs of the same kind. Where there are none, measure=true builds each model once and times a
few training steps on this machine, on synthetic inputs of the real batch size; outputs/measured/steps keeps the times.
Unknown values are marked, and sums that lack one say "at least". rows=, columns=, seeds= and overrides of train.py are
those of reproduce.py.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from subquad import records
from subquad.cli.table_arguments import asked, asked_seeds, asked_tables
from subquad.planning.cost import Device, Pace, Paces, Setting, measured_steps, optimizer_states, pace, setting_of
from subquad.planning.plan_view import show_plan
from subquad.planning.table_plan import Work, gathered, shares
from subquad.results.cells import RunIndex, RunSpec
from subquad.results.table import Table
from subquad.utils.errors import UserError


def main() -> None:
    """Prints the plan of the chosen tables."""
    config, passed = asked({"measure": False})
    tables = asked_tables(config)
    seeds = asked_seeds(config, tables)
    choices = tuple(word for word in passed if not word.startswith("hydra"))
    runs = RunIndex(choices)
    outputs = Path(runs.compositions[choices].outputs)
    runs.compose((cell for table in tables for cell in table if cell.trained or cell.chained), _import_heavy)
    jobs = [job for table in tables for job in runs.specs(table, seeds[table.name])]
    if not jobs:
        Console().print(f"{config.table} trains nothing: its cells are measured or counted.")
        return
    groups = gathered(jobs)
    settings = {words: setting_of(words, runs.compositions) for words in groups}
    # Heavy: after the command line has been checked.
    from subquad.measure import machine

    tell = Console(stderr=True, highlight=False).print
    found = records.read_all(outputs / "runs", lambda error: tell(f"Left out: {error}", soft_wrap=True, markup=False))
    paces = _paces(outputs, found)
    here = Device.of(machine.describe())
    if config.measure:
        _measure([s for words, s in settings.items() if _left(groups[words]) and paces.of(s, here) is None], outputs)
        paces = _paces(outputs, found)
    left = {words: setting for words, setting in settings.items() if _left(groups[words])}
    sizes = _parameters(left.values(), paces, runs.compositions.parameters)
    states = _optimizer_states(settings.values(), runs.compositions.optimizer_states)
    runs.compositions.save()
    works, kept = [], {}
    for words, setting in settings.items():
        needs = runs.missing_data(groups[words][0]) if words in left else None
        works.append(Work(setting, groups[words], paces.parameters(setting) or sizes.get(setting.family), needs))
        kept[words] = states[json.dumps(setting.module["optimizer"], sort_keys=True)]
    tasks, total = shares(works, paces, here, kept)
    title = f"{tables[0].name}: {tables[0].title}" if len(tables) == 1 else f"{len(tables)} tables, shared runs once"
    show_plan(f"{title} ({', '.join(choices) or 'scale=paper'})", tasks, total)
    _rest(tables)


def _import_heavy() -> None:
    """What counting needs: seconds in which other processes compose."""
    import torch._dynamo  # noqa: F401  # by every optimiser

    import subquad.planning.model_size  # noqa: F401


def _left(jobs: Sequence[RunSpec]) -> bool:
    return any(not job.finished for job in jobs)


def _parameters(settings: Iterable[Setting], paces: Paces, known: dict[str, int]) -> dict[str, int]:
    """The numbers of models by family, with those that no run, measurement or earlier command tells."""
    asked = {s.family: s for s in settings if s.family not in known and paces.parameters(s) is None}
    if asked:
        from subquad.planning.model_size import parameters_of

        found = zip(asked, parameters_of(list(asked.values())), strict=True)
        known |= {family: count for family, count in found if count is not None}
    return known


def _optimizer_states(settings: Iterable[Setting], known: dict[str, int]) -> dict[str, int]:
    """The numbers that optimisers keep for each parameter, by their settings."""
    for factory in (setting.module["optimizer"] for setting in settings):
        key = json.dumps(factory, sort_keys=True)
        if key not in known:
            known[key] = optimizer_states(factory)
    return known


def _paces(outputs: Path, found: list[records.Record]) -> Paces:
    measured: dict[str, list[Pace]] = {}
    for step in measured_steps(outputs):
        measured.setdefault(step.family, []).append(pace(step))
    return Paces(found, measured)


def _measure(settings: Sequence[Setting], outputs: Path) -> None:
    """Measures one setting of each family; prints the reason for each that cannot be measured."""
    from subquad.planning.step_time import measure_steps

    console = Console(highlight=False)
    for setting in {setting.family: setting for setting in settings}.values():
        name = f"{setting.attention} on {setting.task}"
        try:
            step = measure_steps(setting, outputs)
            console.print(f"{name}: {step.seconds:.3g} s a step of {step.batch_size}", soft_wrap=True)
        except UserError as error:
            console.print(f"{name}: not measured. {error}", soft_wrap=True, markup=False)


def _rest(tables: Sequence[Table]) -> None:
    """Prints how many cells the plan leaves out."""
    measured = sum(bool(cell.measure and not cell.mean and not cell.unavailable) for table in tables for cell in table)
    if measured:
        Console(highlight=False).print(f"{measured} more cells are counted or timed, not trained; not in the plan.")
