"""What a table would cost before it is spent: runs, hours, disk, downloads, and what is missing here.

python scripts/plan.py table=dba/2
python scripts/plan.py table=all scale=laptop
python scripts/plan.py table=primal_dual/9 rows=[BasicMotions] measure=true

Time is that of finished runs of the same kind. Where there are none, measure=true builds each model once and times a
few training steps on made-up inputs of the real batch size on this machine; outputs/measured/steps keeps them. What is
not known is called so, and sums over it say "at least". rows=, columns=, seeds= and words of train.py are those of
reproduce.py.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from subquad import records
from subquad.errors import UserError
from subquad.run.asked import asked, asked_seeds, asked_tables
from subquad.run.cells import Job, Runs
from subquad.run.costs import Device, Pace, Paces, Setting, measured_steps, optimizer_states, pace, setting_of
from subquad.run.doors import answer_help, prepare_process
from subquad.run.plan import Work, gathered, shares
from subquad.run.show_plan import show_plan
from subquad.tables.table import Table

answer_help(__doc__)
prepare_process(check_choices=False)


def main() -> None:
    """Prints the plan of the asked tables."""
    config, passed = asked({"measure": False})
    tables = asked_tables(config)
    seeds = asked_seeds(config, tables)
    choices = tuple(word for word in passed if not word.startswith("hydra"))
    runs = Runs(choices)
    jobs = [job for table in tables for job in runs.jobs(table, seeds[table.name])]
    if not jobs:
        Console().print(f"{config.table} trains nothing: its cells are measured or counted.")
        return
    groups = gathered(jobs)
    settings = {words: setting_of(words, runs.compositions) for words in groups}
    outputs = Path(runs.compositions[choices].outputs)
    # Heavy: after the words are known to be right.
    from subquad.run import machine

    tell = Console(stderr=True, highlight=False).print
    found = records.read_all(outputs / "runs", lambda error: tell(f"Left out: {error}", soft_wrap=True, markup=False))
    paces = _paces(outputs, found)
    here = Device.of(machine.describe())
    if config.measure:
        _measure([s for words, s in settings.items() if _left(groups[words]) and paces.of(s, here) is None], outputs)
        paces = _paces(outputs, found)
    states: dict[str, int] = {}
    works, kept, sizes = [], {}, runs.compositions.parameters
    for words, setting in _tracked("Models", list(settings.items())):
        parameters = paces.parameters(setting) or sizes.get(setting.family)
        if parameters is None and _left(groups[words]):
            from subquad.run.step_time import parameters_of

            if (parameters := parameters_of(setting)) is not None:
                sizes[setting.family] = parameters
        optimizer = json.dumps(setting.module["optimizer"], sort_keys=True)
        if optimizer not in states:
            states[optimizer] = optimizer_states(setting.module["optimizer"])
        kept[words] = states[optimizer]
        needs = runs.needs(groups[words][0]) if _left(groups[words]) else None
        works.append(Work(setting, groups[words], parameters, needs))
    runs.compositions.save()
    tasks, total = shares(works, paces, here, kept)
    title = f"{tables[0].name}: {tables[0].title}" if len(tables) == 1 else f"{len(tables)} tables, shared runs once"
    show_plan(f"{title} ({', '.join(choices) or 'scale=paper'})", tasks, total)
    _rest(tables)


def _left(jobs: Sequence[Job]) -> bool:
    return any(not job.finished for job in jobs)


def _tracked(what: str, items: Sequence[Any]) -> Iterable[Any]:
    return track(items, what, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def _paces(outputs: Path, found: list[records.Record]) -> Paces:
    measured: dict[str, list[Pace]] = {}
    for step in measured_steps(outputs):
        measured.setdefault(step.family, []).append(pace(step))
    return Paces(found, measured)


def _measure(settings: Sequence[Setting], outputs: Path) -> None:
    """One of each family; says what cannot be measured, and why."""
    from subquad.run.step_time import measure_steps

    console = Console(highlight=False)
    for setting in {setting.family: setting for setting in settings}.values():
        name = f"{setting.attention} on {setting.task}"
        try:
            step = measure_steps(setting, outputs)
            console.print(f"{name}: {step.seconds:.3g} s a step of {step.batch_size}", soft_wrap=True)
        except UserError as error:
            console.print(f"{name}: not measured. {error}", soft_wrap=True, markup=False)


def _rest(tables: Sequence[Table]) -> None:
    """What the plan leaves out."""
    measured = sum(bool(cell.measure and not cell.mean and not cell.missing) for table in tables for cell in table)
    if measured:
        Console(highlight=False).print(f"{measured} more cells are counted or timed, not trained; not in the plan.")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
