"""Start, --help and error handling of all commands. Importing this module does not import torch."""

import ast
import atexit
import difflib
import gc
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import yaml
from hydra.errors import CompactHydraException, HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from subquad.cli import INTERRUPTED
from subquad.config import choices, fingerprint
from subquad.config.choices import CONFIGS
from subquad.config.hydra_internals import mend_starting, parse_files_once
from subquad.config.overrides import for_yaml, with_path
from subquad.config.validate import explain_compositions
from subquad.utils.display import as_typed
from subquad.utils.errors import UserError, explain, first_line
from subquad.utils.malloc import keep_freed_memory
from subquad.utils.output import ending_with_reader
from subquad.utils.setting_types import Count, Natural, Positive, Seed, SettingType, check

_SETTINGS = {"bench": "bench.yaml", "bench_long": "bench.yaml", "bench_peers": "peers.yaml", "eval": "eval.yaml"}
"""Commands whose --help shows settings with their defaults, and the file of these in configs/."""

_TYPES: dict[str, Any] = {
    "threads": Count | None, "device": Literal["auto", "cpu", "cuda"], "levels": Literal["layer", "model"],
    "modes": Literal["inference", "training"], "dtypes": Literal["float32", "bfloat16", "float16", "float64"],
    "float32_precision": Literal["highest", "high", "medium"],
    "compiled": bool | Literal["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"],
    "output": str | None, "seed": Seed, "watch": bool | Positive, "workers": Natural,
}  # fmt: skip
"""Types of settings of commands, or of the entries of their lists, that the default does not show."""

_STRANGE = re.compile(r"0[0-7]+|[1-9]\d*(:[0-5]?\d)+")
"""Numbers that YAML takes for others: 010 is octal, and 1:30 counts in sixties, which makes 90."""


@ending_with_reader()
def run(name: str) -> None:
    """Runs the command of the module `subquad.cli.<name>`, whose `main` returns its exit status or None for 0.

    `check` is short for `check_attention`, and `check gpu` for `check_gpu`.

    With --help, prints the module's docstring instead, without importing the module; --help of `train` is printed by
    Hydra, which lists all choices. An error that the user can correct ends the process with its message and status 1.
    """
    if name == "check":
        name = "check_gpu" if sys.argv[1:2] == ["gpu"] else "check_attention"
        sys.argv[1:] = [argument for argument in sys.argv[1:] if argument != "gpu"]
    if name != "train":
        answer_help(_help_page(name))
    try:
        status = _run_main(name)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if status:
        sys.exit(status)


def _run_main(name: str) -> Any:
    """What the `main` of a command returns; an error that the user can correct ends the process with its message."""
    try:
        find_own_folders()
        prepare_process()
        return import_module(f"subquad.cli.{name}").main()
    except Exception as error:
        cause = explain(error)
        if cause is None or os.environ.get("HYDRA_FULL_ERROR"):
            raise
        sys.exit(str(cause))


def answer_help(page: str | None) -> None:
    """If the command line has --help, prints the page and ends the process with status 0."""
    if {"-h", "--help"} & {*sys.argv[1:]}:
        sys.stdout.write(f"{(page or '').strip()}\n")
        raise SystemExit


def _help_page(name: str) -> str:
    """The docstring of a command's module, and its settings with their defaults if they are in a file."""
    spec = find_spec(f"subquad.cli.{name}")
    assert spec is not None
    assert spec.origin is not None
    page = f"{ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding='utf-8')))}\n"
    if settings := _SETTINGS.get(name):
        page += f"\nSettings and their defaults ({settings}):\n\n{(CONFIGS / settings).read_text(encoding='utf-8')}"
    return as_typed(page)


def find_own_folders() -> None:
    """Makes the user's own paths, configurations and classes known to this process and to those that it starts.

    A path may begin with ~, and one that exists needs no quotes for Hydra.

    `--config-dir <folder>`, which every command takes, is moved into an environment variable. Classes are imported from
    the working folder and from the one of the project's pyproject.toml.

    Raises UserError as `subquad.config.choices.folders` does.
    """
    kept, named, rest = [], [], iter(sys.argv[1:])
    for argument in rest:
        option, equals, folder = argument.partition("=")
        if option not in ("--config-dir", "-cd"):
            kept.append(argument)
        elif folder := folder if equals else next(rest, ""):
            named.append(os.path.abspath(folder))
        else:
            raise UserError(f"{option} names no folder; write it as --config-dir my_configs.")
    sys.argv[1:] = map(with_path, kept)
    for name, value in os.environ.items():
        if name.startswith("SUBQUAD_"):
            os.environ[name] = os.pathsep.join(map(os.path.expanduser, value.split(os.pathsep)))
    if named:
        os.environ[choices.OWN] = os.pathsep.join(filter(None, [*named, os.environ.get(choices.OWN)]))
    choices.folders()
    sys.path += [str(folder) for folder in (Path.cwd(), choices.project()) if folder and str(folder) not in sys.path]


def prepare_process() -> None:
    """Sets up this process, before torch is imported and before Hydra composes.

    By default, waiting threads spin for a long time, which blocks other programs on the same cores. A short spin has no
    measurable cost; without any, small models would train at half the speed. Memory that a step frees is kept for the
    next step. The interpreter's last garbage collection is left out: with torch, it would take up to a second.

    oneDNN keeps what it has compiled for the last 1,024 shapes. Where every batch has another length, these small
    blocks lie between the large ones that were freed, and memory grows for hours: 2 layers of 64 on ListOps took 8 GB
    after 500 steps. It keeps 128 here, enough for the shapes of a model.

    Environment variables that the user has set are not changed. A terminal whose encoding lacks a character shows "?".
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    atexit.register(gc.freeze)
    logging.getLogger("hydra.utils").addFilter(lambda record: False)  # logs errors that it raises
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        os.environ.setdefault("KMP_BLOCKTIME", "1")
    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(variable, "128")
    keep_freed_memory()
    parse_files_once()
    explain_compositions()
    mend_starting(_told)
    fingerprint.register()


def _told(function: Callable[[], Any]) -> Any:
    """Calls Hydra's main function; an error of the user ends the process with its message alone."""
    try:
        return user_errors(lambda _: function())(None)
    except HydraException as error:
        if os.environ.get("HYDRA_FULL_ERROR"):
            raise
        sys.exit(str(error).strip())


class _Explained(CompactHydraException):
    """An error whose message is for the user; Hydra prints it without a traceback."""


def user_errors(task: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes Hydra print errors that the user can correct without a traceback, also in jobs of a sweep."""

    @wraps(task)
    def wrapped(config: Any) -> Any:
        try:
            return task(config)
        except _Explained:
            raise
        except Exception as error:
            cause = explain(error)
            if cause is None or os.environ.get("HYDRA_FULL_ERROR"):
                raise
            raise _Explained(str(cause)) from None

    return wrapped


def bench_config(overrides: Sequence[str]) -> DictConfig:
    """configs/bench.yaml with overrides; raises UserError as `script_settings` does."""
    config = script_settings(OmegaConf.load(CONFIGS / "bench.yaml"), overrides)
    for group in ("attention", "backbone"):
        if isinstance(config[group], str):
            config[group] = config[group].split(",")
    return config


def script_settings(defaults: Any, overrides: Sequence[str]) -> DictConfig:
    """Merges `key=value` overrides into the defaults of a command that does not use Hydra.

    Raises UserError for an unknown key, for a number that YAML reads as another one, and for a value outside of its
    type and range: those of `_TYPES`, or the ones that the default implies (a number of at least 1, or of at least 0 if
    that is the default).
    """
    defaults = OmegaConf.create(defaults)
    known = [str(key) for key in defaults if not str(key).startswith("_")]
    types = {key: _type_of(key, OmegaConf.select(defaults, key)) for key in known}
    for override in overrides:
        key, _, value = override.partition("=")
        parts = re.split(r"[\[\],]", value) if value.startswith("[") else [value]
        if strange := [part.strip() for part in parts if _STRANGE.fullmatch(part.strip())]:
            raise UserError(
                f"{override}: YAML takes {strange[0]} for {yaml.safe_load(strange[0])}; write a plain number (1.5 for "
                "1:30), or a name in quotation marks."
            )
        if key.partition(".")[0].partition("[")[0] not in known:
            close = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
            hint = f"did you mean {close[0]}?" if close else f"the command takes {', '.join(known)}."
            raise UserError(f'There is no setting "{key}"; {hint}')
    OmegaConf.set_struct(defaults, True)
    for override in overrides:
        try:
            defaults.merge_with_dotlist([for_yaml(override)])
            OmegaConf.resolve(defaults)
        except (OmegaConfBaseException, ValueError, yaml.YAMLError) as error:
            remedy = f"the command takes {', '.join(known)}"
            if isinstance(error, yaml.YAMLError):
                remedy = "a name with special characters needs quotation marks of its own, as in columns=['*memory']"
            raise UserError(f"{override}: {first_line(error)}; {remedy}.") from None
    assert isinstance(defaults, DictConfig)
    for key, kind in types.items():
        if kind is not None and not OmegaConf.is_missing(defaults, key):
            value = defaults[key]
            check(key, list(value) if isinstance(value, ListConfig) else value, kind)
    return defaults


def listed(value: Any) -> list[str]:
    """The names in a setting that takes several: [a,b] or a,b."""
    return [str(part) for part in (value if isinstance(value, ListConfig) else str(value).split(","))]


def _type_of(key: str, default: Any) -> SettingType | None:
    """The type of a setting of a command that does not use Hydra; None if any value has a meaning."""
    first = default[0] if isinstance(default, ListConfig) and default else default
    kinds: dict[type, Any] = {bool: bool, int: Count if first else Natural, float: Positive}
    hint = _TYPES.get(key, kinds.get(type(first)))
    if isinstance(default, ListConfig) and hint is not None:
        hint = Sequence[hint]  # type: ignore[valid-type]
    return None if hint is None else SettingType(hint)
