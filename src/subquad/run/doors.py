"""How the command-line programs start and how they fail. Light: nothing heavy is imported before a run is composed."""

import difflib
import fnmatch
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import CompactHydraException, HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from subquad.allocator import keep_freed_memory
from subquad.errors import UserError, first_line
from subquad.run import identity
from subquad.run.composing import parse_files_once

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"


def prepare_process(check_choices: bool = True, own: Collection[str] = ()) -> None:
    """What every program does first, before torch is imported and before Hydra reads the command line.

    Threads that wait for work spin for long by default, and programs beside this one stand still meanwhile. A short
    spin costs nothing measurable; no spin at all would halve the speed of small models. Memory that a step frees is
    kept for the next one. What the user set stays.

    Choices on the command line are checked here: a misspelt one, and a `glob` that matches nothing, end the program.
    Programs whose words are not Hydra's set `check_choices` to False; `own` names settings of the program beside them.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        os.environ.setdefault("KMP_BLOCKTIME", "1")
    keep_freed_memory()
    parse_files_once()
    identity.register()
    if not check_choices:
        return
    try:
        _check_launcher(sys.argv[1:])
        sys.argv[1:] = _checked(sys.argv[1:], own)
        _check_settings(sys.argv[1:])
    except UserError as error:
        sys.exit(str(error))


def answer_help(page: str | None, settings: str | None = None) -> None:
    """Prints what a script says of itself and its settings with their defaults, and ends it, where --help is asked."""
    if {"-h", "--help"} & {*sys.argv[1:]}:
        defaults = (
            f"\nSettings and their defaults ({settings}):\n\n{(CONFIGS / settings).read_text()}" if settings else ""
        )
        sys.stdout.write(f"{(page or '').strip()}\n{defaults}")
        raise SystemExit


def _checked(words: Sequence[str], own: Collection[str] = ()) -> list[str]:
    """The words with `group=glob(pattern)` written out; raises UserError at a choice that does not exist.

    Hydra's own glob does not look into folders (`task=glob(uea/*)`) and takes an empty match for an empty job list.
    With a configuration folder of the user's own, only Hydra knows all choices.
    """
    _check_paths(words)
    if any(word.startswith(("--config-dir", "-cd", "hydra.searchpath")) for word in words):
        return list(words)
    checked = []
    _check_keys(words, [*_top_keys(), *own])
    for word in words:
        group, equals, value = word.partition("=")
        folder = group.partition("@")[0].lstrip("+")
        if equals and (CONFIGS / folder).is_dir() and not folder.startswith("hydra/"):  # which has choices of its own
            if pattern := re.fullmatch(r"glob\(([^,()\[\]]+)\)", value):
                matches = fnmatch.filter(options(folder), pattern[1])
                if not matches:
                    raise UserError(f"{word} selects nothing; the choices are {', '.join(options(folder))}.")
                word = f"{group}={','.join(matches)}"
            else:
                _check_choices(folder, value)
        checked.append(word)
    _check_reach(checked)
    return checked


def _check_paths(words: Sequence[str]) -> None:
    """Raises UserError at a folder without a name: it would be the root of the file system, or called None."""
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        if re.fullmatch(r"paths(\.\w+)?|data\.root", key) and value.strip(" '\"").lower() in ("", "null"):
            raise UserError(f"{word} names no folder; give a path, or leave the word out for the default.")


def _check_keys(words: Sequence[str], known: Sequence[str]) -> None:
    """Raises UserError at a misspelt group or setting: with the + that Hydra advises it would set nothing."""
    for word in words:
        key = word.partition("=")[0].lstrip("+~")
        if "=" not in word or not re.fullmatch(r"\w+", key) or key in known:
            continue
        if close := difflib.get_close_matches(key, known, n=1, cutoff=0.75):
            raise UserError(f'There is no setting "{key}"; did you mean {close[0]}?')


@cache
def _top_keys() -> list[str]:
    """Groups, and settings outside groups; read once, because a sweep composes hundreds of configurations."""
    groups = {path.name for path in CONFIGS.iterdir() if path.is_dir()}
    return sorted(groups.union(*(map(str, OmegaConf.load(CONFIGS / f"{name}.yaml")) for name in ("train", "eval"))))


def _check_launcher(words: Sequence[str]) -> None:
    """Raises UserError at a launcher of one run: Hydra would ignore it and train here."""
    if any(word.startswith("hydra/launcher=") for word in words) and not {"-m", "--multirun", "hydra.mode=MULTIRUN"} & {
        *words
    }:
        raise UserError("hydra/launcher= is for sweeps, also for those of one run; add -m.")


def _check_settings(words: Sequence[str]) -> None:
    """Raises UserError at a misspelt setting of a group, and at a name where a list has places.

    Hydra advises to add the first with a +, and does not expect the second. Of a sweep the first run is looked at.
    """
    plain = [word for word in words if word not in ("-m", "--multirun")]
    by_hydra = any(word.startswith(("-", "hydra.searchpath")) for word in plain)
    if by_hydra or not any(re.match(r"\+*\w+\.[\w.]+=", word) for word in plain):
        return
    try:
        first = [_first(override) for override in OverridesParser.create().parse_overrides(plain)]
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            compose("train", first)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if (told := _of_words(error)) is not None:
            raise told from None  # all else Hydra says well


def _first(override: Override) -> str:
    """A word of a sweep with the first of its values, any other word as it is."""
    if override.is_sweep_override():
        return f"{override.get_key_element()}={next(override.sweep_string_iterator())}"
    return str(override.input_line)


def _of_words(error: Exception) -> UserError | None:
    """A sentence where a group has no such setting or a list no such place; None where something else is wrong."""
    if isinstance(error, UserError):
        return error
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return UserError(
            f"A list has places 0, 1, ... and no names ({error}); write all of it, as in data.sizes=[9,3,3]."
        )
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ConfigAttributeError | ConfigKeyError):
        cause = cause.__cause__
    if cause is None or not isinstance(cause.parent_node, DictConfig) or "." not in str(cause.full_key):
        return None
    group, _, name = str(cause.full_key).rpartition(".")
    known = [str(key) for key in cause.parent_node if not str(key).startswith("_")]
    told = f'There is no setting "{name}" in {group}' + (f"; {hint(name, known)}" if known else ".")
    if "did you mean" not in told:
        told += f" +{cause.full_key}= adds an argument that its class takes beside them."
    return UserError(told)


def _check_reach(words: Sequence[str]) -> None:
    """Raises UserError at an encoder in the place of one attention, and at settings of the backbone that it ignores."""
    for word in words:
        site, _, name = word.partition("=")
        if site.startswith("attention@") and name in options("attention") and brought_encoder(name) is not None:
            raise UserError(
                f"{name} is an encoder of its own and cannot stand in {site}; choose it as attention={name}."
            )
    settings = [word.partition("=")[0] for word in words if word.startswith("backbone.")]
    chosen = next((word for word in reversed(words) if word.startswith("attention=")), "")
    for name in chosen.partition("=")[2].split(",") if settings else ():
        if name in options("attention") and (node := brought_encoder(name)) is not None:
            read = re.findall(r"\$\{(backbone\.\w+)\}", OmegaConf.to_yaml(node))
            if lost := [key for key in settings if key not in read]:
                raise UserError(
                    f"{lost[0]} has no effect on attention={name}, an encoder of its own that reads "
                    f"{', '.join(dict.fromkeys(read))}; leave it out, or run {name} apart from the others."
                )


def _check_choices(group: str, value: str) -> None:
    """Raises UserError at a name that is no choice of the group; leaves Hydra's own syntax to Hydra."""
    if value in ("", "null", "all") or re.search(r"[()\[\]{}$?'\"]", value):
        return
    known = options(group)
    for name in value.split(","):
        if name not in known:
            raise UserError(f'There is no {group} "{name}"; {hint(name, known)}')


def hint(name: str, known: Sequence[str]) -> str:
    """What a misspelt name may have meant, or all names."""
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(known)}."


def user_errors(task: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Turns a UserError into its one sentence, without a traceback, and exit status 1."""

    @wraps(task)
    def wrapped(config: Any) -> Any:
        try:
            return task(config)
        except Exception as error:
            cause = sentence(error)
            if cause is None or os.environ.get("HYDRA_FULL_ERROR"):
                raise
            raise CompactHydraException(str(cause)) from None

    return wrapped


def sentence(error: Exception) -> UserError | None:
    """What to tell the user of an error, or None where it is none of theirs."""
    return _user_error(error) or _file_error(error)


def _user_error(error: BaseException | None) -> UserError | None:
    """The UserError in a chain of causes: Hydra's instantiate wraps what a constructor raises.

    A worker process of a DataLoader hands on its traceback as the message; the sentence is at its end.
    """
    while error is not None:
        if isinstance(error, UserError):
            return UserError(str(error).rpartition(f"{UserError.__module__}.UserError: ")[2].strip())
        error = error.__cause__ or error.__context__
    return None


def _file_error(error: Exception) -> UserError | None:
    """A sentence for a file that cannot be read or written: no space, no permission, no such folder."""
    if isinstance(error, RuntimeError) and "unexpected pos" in str(error):  # how torch says that a disk is full
        return UserError("A checkpoint cannot be written; free some space, or set SUBQUAD_OUTPUTS to another folder.")
    if not isinstance(error, OSError):
        return None
    place = error.filename or "A file"
    return UserError(
        f"{place} cannot be read or written ({error.strerror or error}); free some space, mend the permissions, or set "
        "SUBQUAD_OUTPUTS and SUBQUAD_DATA to other folders."
    )


def options(group: str) -> list[str]:
    """Every choice of a config group, nested ones as family/name; a leading underscore marks a shared part."""
    found = (CONFIGS / group).rglob("*.yaml")
    return sorted(str(f.relative_to(CONFIGS / group).with_suffix("")) for f in found if not f.name.startswith("_"))


def compose_run(overrides: Sequence[str]) -> DictConfig:
    """The configuration that `python train.py <overrides>` would run, without running it.

    Raises UserError where the words do not compose.
    """
    parse_files_once()
    identity.register()
    words = [f"paths.root={Path.cwd()}", *_checked(overrides)]
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            config = compose("train", words, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _of_words(error) or UserError(str(error)) from None
    HydraConfig.instance().set_config(config)
    OmegaConf.set_struct(config, None)
    del config["hydra"]
    return config


def load_attention(name: str, overrides: Sequence[str] = ()) -> Any:
    """The factory of configs/attention/<name>.yaml, without dropout: of attentions, as a backbone is given it, or of an
    encoder.
    """
    from hydra.utils import instantiate

    from subquad.run.settings import check_settings

    words = [f"attention={name}", "backbone.dropout=0.0", *overrides]
    node = OmegaConf.to_container(compose_run(words).attention, resolve=True)
    assert isinstance(node, dict)
    check_settings("attention", {str(key): value for key, value in node.items()})
    return instantiate(node, _convert_="all")


@cache
def brought_encoder(name: str) -> DictConfig | None:
    """The node of a choice of attention that is an encoder of its own, in place of the backbone; None for others."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose(f"attention/{name}")
    return config.attention if "encoder" in config else None


def bench_config(words: Sequence[str]) -> DictConfig:
    """configs/bench.yaml with the command line's `key=value` words; raises UserError at an unknown key."""
    config = script_settings(OmegaConf.load(CONFIGS / "bench.yaml"), words)
    if isinstance(config.attention, str):
        config.attention = config.attention.split(",")
    return config


def script_settings(defaults: Any, words: Sequence[str]) -> DictConfig:
    """The defaults of a script with the `key=value` words of its command line.

    Raises UserError at an unknown key, and at what is no number, or neither true nor false, where the default is one.
    """
    kinds = {key: type(OmegaConf.select(defaults, str(key))) for key in defaults}
    OmegaConf.set_struct(defaults, True)
    try:
        defaults.merge_with_dotlist(list(words))
    except (OmegaConfBaseException, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"{reason}; {Path(sys.argv[0]).name} takes {', '.join(map(str, defaults))}.") from None
    assert isinstance(defaults, DictConfig)
    for key, kind in kinds.items():
        if kind in (int, float) and type(defaults[key]) not in (int, float):
            raise UserError(f"{key} is {defaults[key]}; it takes a number.")
        if kind is bool and type(defaults[key]) is not bool:
            raise UserError(f"{key} is {defaults[key]}; it takes true or false.")
    return defaults
