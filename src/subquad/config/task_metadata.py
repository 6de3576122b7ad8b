"""Reads the description of a task's data from its YAML file: splits, source, licence, where to get them."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from subquad.config import choices

FACTS = ("splits", "source", "licence", "get", "protocols")
"""The keys of `about` that every task has in addition to `what`."""


def about_task(name: str) -> dict[str, Any]:
    """The `about` section of a task, including inherited keys, and `metric`, the name of its validation metric.

    what, splits, source, licence, get, protocols: sentences. train_rows: number of training rows, or None where it
    depends on the user's files. download: size of the files to fetch, "nothing", or absent where it is not stated.
    shortcuts: scores in % without a model, where published scores are near them.
    """
    path = choices.file_of("task", name)
    return {} if path is None else _about(path)  # no file: a task of `hydra.searchpath=`


@cache
def _about(path: Path) -> dict[str, Any]:
    settings: Any = OmegaConf.load(path)
    facts: dict[str, Any] = {}
    for parent in settings.get("defaults", []):
        if isinstance(parent, str) and parent != "_self_":
            facts |= about_task(parent.removeprefix("/task/"))
    if monitor := OmegaConf.select(settings, "task.monitor"):
        facts["metric"] = monitor.removeprefix("val/")
    return facts | dict(settings.get("about", {}))


def published_test_rows(name: str) -> int | None:
    """Rows of a task's published test split, the last number of `splits`; None where it depends on the user's files."""
    found = re.match(r"[\d,]+/(?:[^/ ]+/)?([\d,]+)", about_task(name).get("splits", ""))
    return int(found[1].replace(",", "")) if found else None


@cache
def task_of(overrides: tuple[str, ...]) -> str:
    """The task that overrides of train.py choose by task= or experiment=; empty where neither does."""
    return chosen(overrides).get("task", "")


def chosen(overrides: Iterable[str]) -> dict[str, str]:
    """What overrides of train.py choose, by key, with the choices of groups that an experiment= makes for them."""
    given = dict(str(override).lstrip("+").partition("=")[::2] for override in overrides)
    path = choices.file_of("experiment", given["experiment"]) if given.get("experiment") else None
    return given if path is None else _of_experiment(path) | given


@cache
def _of_experiment(path: Path) -> dict[str, str]:
    settings: Any = OmegaConf.load(path)
    entries = (entry.items() for entry in settings.get("defaults", []) if not isinstance(entry, str))
    return {
        key.removeprefix("override /"): str(value)
        for entry in entries
        for key, value in entry
        if key.startswith("override /")
    }


def opening_comment(path: Path) -> list[str]:
    """The lines of the comment at the start of a configuration file."""
    lines = path.read_text(encoding="utf-8").removeprefix("# @package _global_\n").splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("# ")), len(lines))
    return [line.removeprefix("# ") for line in lines[:end]]


def names_files(data: Mapping[str, Any]) -> bool:
    """Whether the settings of data name files of the user, which may change from one command to the next."""
    return any(data.get(key) is not None for key in ("folder", "train"))
