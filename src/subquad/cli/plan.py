"""Estimates what a table costs before it is run: runs, hours, disk, downloads, and missing data.

python scripts/plan.py table=dba/2
python scripts/plan.py table=all scale=laptop
python scripts/plan.py table=primal_dual/9 rows=[BasicMotions] measure=true
python scripts/plan.py table=arena rows=[mine] attention=my_module:Mine   # a row of your own, with its learning rates
python scripts/plan.py table=ecoformer/1 gpu_memory=24GB

Times are taken from finished runs of the same kind, also from those in docs/results. If there are none, measure=true
estimates the memory of a training step of each model on a CPU and on a GPU, and times a few steps on this machine of
those that fit, on random inputs of the real batch size; the times are stored in outputs/measured/steps.
gpu_memory= estimates the peak memory of each model's training step, and what makes it fit such a GPU.
The first estimate takes about a second a model; it needs no GPU.
Unknown values are marked, and sums that lack one begin with "at least". rows=, columns=, seeds= and overrides of
train.py work as in reproduce.py.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from subquad import records
from subquad.cli.table_arguments import chosen_seeds, chosen_tables, split_arguments, table_of_rates
from subquad.config.compose import compose_run
from subquad.config.compositions import Compositions
from subquad.planning.cost import (
    Device,
    Pace,
    Paces,
    Setting,
    measured_steps,
    optimizer_states,
    pace,
    pace_of_others,
    setting_of,
)
from subquad.planning.plan_view import show_memory, show_plan
from subquad.planning.table_plan import Work, jobs_by_setting, shares
from subquad.results.cells import RunIndex
from subquad.results.footnotes import not_run
from subquad.results.store import Store
from subquad.results.table import Table
from subquad.utils.byte_sizes import bytes_of
from subquad.utils.display import counted
from subquad.utils.errors import UserError


def main() -> None:
    """Prints the plan of the chosen tables."""
    config, overrides = split_arguments({"measure": False, "gpu_memory": None})
    tables = chosen_tables(config, overrides)
    seeds = chosen_seeds(config, tables)
    rates = [found for found in map(table_of_rates, tables) if found is not None]
    tables, seeds = [*rates, *tables], seeds | {table.name: None for table in rates}
    memory = None if config.gpu_memory is None else bytes_of(config.gpu_memory, "gpu_memory")
    choices = tuple(override for override in overrides if not override.startswith("hydra"))
    runs = RunIndex(choices)
    outputs = Path(runs.compositions[choices].outputs)
    runs.compose((cell for table in tables for cell in table if cell.trained), _import_heavy)
    jobs = [job for table in tables for job in runs.specs(table, seeds[table.name])]
    if not jobs:
        Console().print(f"Nothing that is chosen of {config.table} is trained.")
        _print_unplanned(tables)
        return
    groups = jobs_by_setting(jobs)
    settings = {key: setting_of(key, runs.compositions) for key in groups}
    # Slow imports come after the command line has been checked.
    from subquad.measure import machine

    warn = Console(stderr=True, highlight=False).print
    finished = records.read_all(
        outputs / "runs", lambda error: warn(f"Left out: {error}", soft_wrap=True, markup=False)
    )
    stored = Store.read().runs.values()
    kept = _kept(settings.values(), stored, runs.compositions)
    paces = _paces(outputs, finished, kept)
    here = Device.of(machine.describe(), compose_run(choices).trainer.accelerator)
    peaks: dict[str, dict[str, int]] = {}
    left = {key: setting for key, setting in settings.items() if any(not job.finished for job in groups[key])}
    if config.measure:
        unknown = [setting for setting in left.values() if paces.of(setting, here) is None]
        if not unknown:
            Console().print("Nothing is measured: finished or kept runs tell the time of each model.")
        peaks = _step_memory(list(left.values()), runs.compositions)
        _measure(unknown, outputs)
        paces = _paces(outputs, finished, kept)
    sizes = _parameters(left.values(), paces, runs.compositions.parameters)
    states_of_optimizer = _optimizer_states(settings.values(), runs.compositions.optimizer_states)
    runs.compositions.save()
    works, states = [], {}
    own = [{*row.overrides} for table in tables for row in table.rows if row.name in table.added]
    for key, setting in settings.items():
        needs = runs.missing_data(groups[key][0]) if key in left else None
        parameters = paces.parameters(setting) or sizes.get(setting.family)
        others = pace_of_others(setting, stored) if any(row <= {*setting.overrides} for row in own) else None
        works.append(Work(setting, groups[key], parameters, needs, peaks.get(setting.family, {}), others))
        states[key] = states_of_optimizer[json.dumps(setting.module["optimizer"], sort_keys=True)]
    tasks, total = shares(works, paces, here, states)
    title = f"{tables[0].name}: {tables[0].title}" if len(tables) == 1 else f"{len(tables)} tables, shared runs once"
    show_plan(f"{title} ({', '.join(choices) or 'scale=paper'})", tasks, total)
    _print_unplanned(tables)
    if memory is not None:
        _print_memory(list(settings.values()), memory, runs.compositions)


def _print_memory(settings: Sequence[Setting], memory: int, compositions: Compositions) -> None:
    from subquad.measure.step_memory import USABLE
    from subquad.planning.gpu_memory import fits

    show_memory(fits(settings, memory, compositions.step_bytes), memory, 1 - USABLE)
    compositions.save()


def _step_memory(settings: Sequence[Setting], compositions: Compositions) -> dict[str, dict[str, int]]:
    """Peak bytes of training steps by family and device."""
    from subquad.planning.gpu_memory import whole_steps

    peaks = whole_steps(settings, compositions.step_bytes)
    compositions.save()
    return peaks


def _import_heavy() -> None:
    """Imports the slow modules for counting while other processes compose configurations."""
    import torch._dynamo  # noqa: F401  # imported by every optimiser

    import subquad.planning.model_size  # noqa: F401


def _parameters(settings: Iterable[Setting], paces: Paces, known: dict[str, int]) -> dict[str, int]:
    """Numbers of parameters by family; counts those that no run, measurement or earlier command has provided."""
    unknown = {s.family: s for s in settings if s.family not in known and paces.parameters(s) is None}
    if unknown:
        from subquad.planning.model_size import parameters_of

        counts = zip(unknown, parameters_of(list(unknown.values())), strict=True)
        known |= {family: count for family, count in counts if count is not None}
    return known


def _optimizer_states(settings: Iterable[Setting], known: dict[str, int]) -> dict[str, int]:
    """Numbers of values that optimisers store for each parameter, by the JSON of their settings."""
    for factory in (setting.module["optimizer"] for setting in settings):
        key = json.dumps(factory, sort_keys=True)
        if key not in known:
            known[key] = optimizer_states(factory)
    return known


def _kept(
    settings: Iterable[Setting], stored: Iterable[records.Record], compositions: Compositions
) -> list[tuple[str, records.Record]]:
    """The runs of docs/results with the task and the attention of a setting, with their families."""
    planned = {(setting.task, setting.attention) for setting in settings}
    kept = [run for run in stored if (run.task, run.attention) in planned]
    families = {tuple(run.overrides): "" for run in kept}
    for overrides in families:
        families[overrides] = setting_of(overrides, compositions).family
    return [(families[tuple(run.overrides)], run) for run in kept]


def _paces(outputs: Path, finished: list[records.Record], kept: list[tuple[str, records.Record]]) -> Paces:
    measured: dict[str, list[Pace]] = {}
    for step in measured_steps(outputs):
        measured.setdefault(step.family, []).append(pace(step))
    return Paces(finished, measured, kept)


def _measure(settings: Sequence[Setting], outputs: Path) -> None:
    """Measures one setting of each family; prints the reasons for those that cannot be measured, each once."""
    from subquad.planning.step_time import measure_steps

    console, reasons = Console(highlight=False), dict[str, list[str]]()
    for setting in {setting.family: setting for setting in settings}.values():
        name = f"{setting.attention} on {setting.task}"
        try:
            step = measure_steps(setting, outputs)
            how = step.memory and f"; {step.memory}"
            console.print(
                f"{name}: {step.seconds:.3g} s a step of {step.batch_size}{how}", soft_wrap=True, markup=False
            )
        except UserError as error:
            reasons.setdefault(str(error), []).append(name)
    for reason, names in reasons.items():
        console.print(f"Not measured: {', '.join(names)}. {reason}", soft_wrap=True, markup=False)


def _print_unplanned(tables: Sequence[Table]) -> None:
    """Prints the number of cells that are measured without training, and which cells are not run."""
    measured = sum(bool(cell.measure and not cell.mean and not cell.unavailable) for table in tables for cell in table)
    if measured:
        more = f"{counted(measured, 'more cell')} {'is' if measured == 1 else 'are'}"
        Console(highlight=False).print(f"{more} counted or timed, not trained; not in the plan.")
    if left_out := not_run(tables):
        Console(highlight=False).print(left_out, soft_wrap=True, markup=False)
