"""A search of settings with Optuna: what it varies, its trials, which one file keeps, and what it shows."""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.trial import TrialState
from rich.console import Console

from subquad.config.choices import CONFIGS
from subquad.config.overrides import as_override
from subquad.config.own_code import own_code
from subquad.config.task_metadata import names_files
from subquad.config.validate import checked_overrides
from subquad.training.callbacks.prune import PRUNED, TRIAL, storage_of
from subquad.utils.atomic import atomic_write
from subquad.utils.display import command_line, counted
from subquad.utils.errors import UserError, first_line

log = logging.getLogger(__name__)

FAILURE = "failure"
"""Attribute of a trial: why it failed."""


def split(arguments: Sequence[str], params: Mapping[str, str]) -> tuple[list[str], dict[str, BaseDistribution]]:
    """The overrides that all trials have, and what is searched: by key, from the command line or else from `params`."""
    parser = OverridesParser.create()
    given = parser.parse_overrides(list(arguments))
    keys = {override.get_key_element() for override in given}
    more = checked_overrides([f"{key}={value}" for key, value in params.items() if key not in keys])
    every = [*given, *parser.parse_overrides(more)]
    space = {o.get_key_element(): _distribution(o) for o in every if o.is_sweep_override()}
    if not space:
        raise UserError("Nothing is searched; give a range, as in 'optimizer.lr=tag(log,interval(1e-4,1e-2))'.")
    return [str(override.input_line) for override in every if not override.is_sweep_override()], space


def check_counts(n_trials: Any, n_jobs: Any) -> None:
    """Raises UserError where the number of trials, or of trials at a time, is no whole number above 0."""
    for name, value in (("n_trials", n_trials), ("n_jobs", 1 if n_jobs is None else n_jobs)):
        if type(value) is not int or value < 1:
            raise UserError(f"hydra.sweeper.{name}={value} is no whole number above 0; try hydra.sweeper.{name}=4.")


def _distribution(override: Override) -> BaseDistribution:
    """What Optuna draws from: for a range or a list exactly the values that Hydra's own sweep would run."""
    sweep: Any = override.value()
    if not isinstance(sweep, IntervalSweep):
        return CategoricalDistribution(list(dict.fromkeys(override.sweep_string_iterator())))
    kind = IntDistribution if isinstance(sweep.start, int) and isinstance(sweep.end, int) else FloatDistribution
    try:
        return kind(sweep.start, sweep.end, log="log" in sweep.tags)  # type: ignore[arg-type]
    except ValueError as error:
        remedy = "a logarithm needs numbers above 0" if "low > 0" in str(error) else "write the smaller number first"
        raise UserError(f"{override.input_line} is no range ({str(error).rstrip('.')}); {remedy}.") from None


def example(space: Mapping[str, BaseDistribution]) -> list[str]:
    """Overrides of one trial, to compose what all have in common."""
    return [
        f"{key}={values.choices[0] if isinstance(values, CategoricalDistribution) else values.low}"  # type: ignore[attr-defined]
        for key, values in space.items()
    ]


@contextmanager
def opened(
    config: DictConfig, fixed: Sequence[str], space: Mapping[str, BaseDistribution], name: str | None,
    storage: str | None, sampler: Any, pruner: Any, write_page: Callable[..., None],
) -> Iterator["Search"]:  # fmt: skip
    """The search of this name, or of these settings, code and own files, which no other process continues meanwhile.

    write_page: `subquad.report.html.study_page.write_study_page`. Trials that were running when the search was
    interrupted are tried again first. Raises UserError where another process is searching, or where a study of this
    name searches something else.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    plain = {key: distribution_to_json(values) for key, values in space.items()}
    settings = [sorted(fixed), plain, *filter(None, [_code(config, space), _files(config)])]
    same = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    name = name or f"{str(config.task.name).replace('/', '-')}-{same}"
    folder = Path(config.paths.outputs) / "studies" / name
    folder.mkdir(parents=True, exist_ok=True)
    place = storage or str(folder / "trials.log")
    try:
        with FileLock(folder / ".lock", timeout=0):
            study = _study(place, name, "maximize" if config.task.mode == "max" else "minimize")
            if study.user_attrs.setdefault("search", same) != same:
                raise UserError(f"{folder} is a search of other settings; choose another hydra.sweeper.study_name.")
            study.set_user_attr("search", same)
            for trial in study.get_trials(states=(TrialState.RUNNING,)):
                study.tell(trial.number, state=TrialState.FAIL)
                study.enqueue_trial(trial.params, user_attrs={"again": trial.number})
            if sampler is not None and "seed" in sampler:  # otherwise it would draw the first trials once more
                sampler = OmegaConf.merge(sampler, {"seed": sampler.seed + len(study.trials)})
            study.sampler = _built("sampler", sampler) or study.sampler
            study.pruner = _built("pruner", pruner) or optuna.pruners.NopPruner()
            if config.get("protocol") == config.data.get("protocol") == "paper":
                log.warning("protocol=paper selects on the test rows; search with protocol=clean.")
            yield Search(study, config, fixed, space, folder, place, write_page)
    except Timeout:
        raise UserError(f"Another process is searching ({folder}); wait for it, or change a setting.") from None


def _code(config: DictConfig, space: Mapping[str, BaseDistribution]) -> dict[str, str]:
    """The code of the user's classes in the trials: those of `config`, and those that `attention=` is chosen from."""
    searched = space.get("attention")
    names = searched.choices if isinstance(searched, CategoricalDistribution) else ()
    classes = [{"_target_": re.sub(r"\\?:", ".", str(name))} for name in names if ":" in str(name)]
    return own_code([OmegaConf.to_container(config), *classes])


def _files(config: DictConfig) -> str | None:
    """The fingerprint of the user's own files; None for other data."""
    if not names_files(config.data):
        return None
    data = instantiate(OmegaConf.to_container(config.data, resolve=True), _convert_="all")
    data.prepare_data()
    return str(data.fingerprint)


def _study(place: str, name: str, direction: Any) -> optuna.Study:
    try:
        return optuna.create_study(storage=storage_of(place), study_name=name, direction=direction, load_if_exists=True)
    except Exception as error:  # of any driver of a database
        if "://" not in place:
            raise
        raise UserError(f"The database {place} cannot be used ({first_line(error)}); correct the address.") from None


def _built(name: str, settings: Any) -> Any:
    """The sampler or pruner; one of another class than the shipped one gets nothing but the seed of its settings."""
    shipped = OmegaConf.select(OmegaConf.load(CONFIGS / "hydra" / "sweeper" / "optuna.yaml"), name)
    if settings is not None and settings.get("_target_") != shipped["_target_"]:
        settings = OmegaConf.create({k: v for k, v in settings.items() if k == "seed" or shipped.get(k) != v})
    try:
        return instantiate(settings)
    except InstantiationException as error:
        reason = " ".join(str(error.__cause__ or error).split()).rstrip(".")
        raise UserError(f"hydra.sweeper.{name} cannot be built ({reason}); see Optuna's {name}s.") from None


class Search:
    """The trials of a study.

    Args:
        study: of Optuna.
        config: composed for one of its trials.
        fixed: the overrides that all trials have.
        space: what is searched.
        folder: of its pages.
        place: the file or address of its storage.
        write_page: writes its page.
    """

    def __init__(
        self, study: optuna.Study, config: DictConfig, fixed: Sequence[str], space: Mapping[str, BaseDistribution],
        folder: Path, place: str, write_page: Callable[..., None],
    ) -> None:  # fmt: skip
        self.study, self.config, self.fixed, self.space = study, config, fixed, space
        self.folder, self.place, self.write_page = folder, place, write_page
        self.pruner = OmegaConf.to_container(config.hydra.sweeper.pruner or OmegaConf.create(), resolve=True)
        self.running: list[list[optuna.Trial]] = []

    @property
    def asked(self) -> int:
        """How many trials have been started."""
        return len(self.study.get_trials(deepcopy=False))

    @property
    def ended(self) -> int:
        """How many trials have ended, without those that were interrupted."""
        trials = self.study.get_trials(deepcopy=False)
        return sum(t.state.is_finished() and (t.state != TrialState.FAIL or FAILURE in t.user_attrs) for t in trials)

    def ask(self, count: int) -> list[list[str]]:
        """The overrides of the next trials; those with the same ones are one run."""
        groups: dict[tuple[str, ...], list[optuna.Trial]] = {}
        for trial in (self.study.ask(dict(self.space)) for _ in range(count)):
            groups.setdefault(tuple(overrides_of(trial.params)), []).append(trial)
        self.running = list(groups.values())
        return [[*self.fixed, *own, *self._pruned_by(trials[0])] for own, trials in groups.items()]

    def _pruned_by(self, trial: optuna.Trial) -> list[str]:
        """The variable by which a run finds its trial. It is no setting of the run, so no record names it."""
        if isinstance(self.study.pruner, optuna.pruners.NopPruner):
            return []
        trial_of = {"storage": self.place, "study": self.study.study_name, "trial": trial.number, "pruner": self.pruner}
        return [f"+hydra.job.env_set.{TRIAL}={as_override(json.dumps(trial_of))}"]

    def tell(self, outcomes: Sequence[float | str]) -> None:
        """Keeps the values that the trials asked for last have reached, or the causes of their failures."""
        for trials, outcome in zip(self.running, outcomes, strict=True):
            pruned = PRUNED in self.study.trials[trials[0].number].user_attrs
            for trial in trials:
                if isinstance(outcome, float):
                    self.study.tell(trial, outcome)
                    continue
                if not pruned:
                    trial.set_user_attr(FAILURE, outcome.partition("\n")[0])
                self.study.tell(trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)
        self.running = []
        self._write()

    def show(self) -> float:
        """Prints the best trial and how to run it, and returns its value. Raises UserError where no trial finished."""
        done = self.study.get_trials(states=(TrialState.COMPLETE,))
        states = [trial.state for trial in self.study.get_trials(deepcopy=False)]
        page = self._write()
        if not done:
            raise UserError(f"None of {counted(self.ended, 'trial')} finished; {page} says why.")
        best = self.study.best_trial
        command = command_line("python train.py", [*self.fixed, *overrides_of(best.params)])
        print_line = Console(highlight=False).print
        stopped, failed = states.count(TrialState.PRUNED), self.ended - len(done) - states.count(TrialState.PRUNED)
        rest = (f", {stopped} stopped early" if stopped else "") + (f", {failed} failed" if failed else "")
        print_line(
            f"{len(done)} of {counted(self.ended, 'trial')} finished{rest}; the best {self.config.task.monitor} is "
            f"{best.value:.4g} (trial {best.number}):\n{command}\n{page}",
            soft_wrap=True, markup=False,
        )  # fmt: skip
        assert best.value is not None
        return best.value

    def _write(self) -> Path:
        """Writes the page, and `best.yaml` with the names of Hydra's plugin."""
        if self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            best = {"name": "optuna", "best_params": self.study.best_params, "best_value": self.study.best_value}
            with atomic_write(self.folder / "best.yaml") as file:
                file.write_text(OmegaConf.to_yaml(best), encoding="utf-8")
        page = self.folder / "index.html"
        self.write_page(page, self.study, list(self.space), self.fixed, str(self.config.task.monitor))
        return page


def overrides_of(params: Mapping[str, Any]) -> list[str]:
    """The overrides of a trial's settings."""
    return [f"{key}={value}" for key, value in params.items()]
