"""Caches on disk what overrides compose to, and the sizes of the models."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter

import subquad
from subquad import records
from subquad.config import choices, compose, fingerprint
from subquad.config.fingerprint import ANY, identity, mechanism, run_of, with_code
from subquad.utils.atomic import atomic_write
from subquad.utils.errors import UserError
from subquad.utils.spread import spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """The composed configuration of a run, apart from its seed.

    folder: the path of the run's folder without the suffix for the seed. outputs: the folder of all outputs.
    attention: the choice of attention, or of the backbone where the backbone takes no attention. identity: see
    `subquad.config.fingerprint`. data, module: resolved settings of the data and of the task's module, with the paths
    of this machine.
    """

    folder: str
    outputs: str
    attention: str
    identity: Mapping[str, Any]
    data: Mapping[str, Any]
    module: Mapping[str, Any]

    @classmethod
    def of(cls, overrides: Sequence[str]) -> "Composition":
        """Composes `python train.py <overrides>`. Raises UserError for overrides that do not compose."""
        own = tuple(override for override in overrides if re.match(r"\W*attention\b(?!@)", override))
        one = [override.startswith("attention=") for override in own] == [True] + [False] * (len(own) - 1)
        # Files of the user, and interpolations in overrides, can make more of an attention than a value.
        shipped = choices.folders() == (choices.CONFIGS,) and not any(
            "$" in override or override.startswith("hydra.") for override in overrides
        )
        with suppress(UserError, SystemExit, HydraException, OmegaConfBaseException):
            if one and shipped:
                return _with_attention(own, tuple(override for override in overrides if override not in own))
        return cls.of_config(compose.compose_run([*overrides, "seed=0"], compose.from_choices))

    @classmethod
    def of_config(cls, config: DictConfig) -> "Composition":
        """The composition of a composed configuration."""
        data, module = (OmegaConf.to_container(node, resolve=True) for node in (config.data, config.task.module))
        return cls(
            folder=str(config.paths.run).removesuffix("-s0"),
            outputs=str(config.paths.outputs),
            attention=mechanism(config),
            identity=identity(config),
            data=cast(dict[str, Any], data),
            module=cast(dict[str, Any], module),
        )


def _with_attention(own: tuple[str, ...], others: tuple[str, ...]) -> Composition:
    """What Hydra composes, from two kept compositions: of an attention alone, and of all else.

    Most cells of tables combine few of each. Raises an error where the attention is more than a value that others refer
    to as a whole, and where overrides do not compose; Hydra then composes them together.
    """
    name = own[0].partition("=")[2]
    if not choices.is_option("attention", name):
        raise UserError("This is more than a name.")
    config, its_hydra, rest = _with_any(others)
    config.attention = _attention(own)
    HydraConfig.instance().cfg = its_hydra
    with read_write(its_hydra.hydra):
        its_hydra.hydra.runtime.choices["attention"] = name
    with fingerprint.without_paths(config):
        settings: Any = OmegaConf.to_container(config.attention, resolve=True)
    if settings != OmegaConf.to_container(config.attention, resolve=True):
        raise UserError("These settings depend on paths, which are not part of an identity.")
    known, data, module = (_put(part, settings) for part in (rest.identity, rest.data, rest.module))
    identity = with_code(known)
    folder = rest.folder.replace(ANY, name).replace(records.fingerprint(rest.identity), records.fingerprint(identity))
    return Composition(folder=folder, outputs=rest.outputs, attention=name, identity=identity, data=data, module=module)


@lru_cache(maxsize=4)
def _with_any(others: tuple[str, ...]) -> tuple[DictConfig, Any, Composition]:
    """The configuration of a run with any attention, Hydra's own, and the composition.

    No choice of attention is known to Hydra, so that it raises an error where a setting depends on it.
    """
    config = compose.compose_run(["~attention", *others, "seed=0"], compose.from_choices)
    if "attention" in config:
        raise UserError("A choice of another group has settings of the attention.")
    texts = re.sub(r"\$\{(hydra:runtime\.choices\.)?attention\}", "", str(OmegaConf.to_container(config)))
    if re.search(r"\$\{[^']*\battention\b", texts):
        raise UserError("A setting depends on a part of the attention.")
    config.attention = ANY
    rest = Composition.of_config(config)
    if rest.attention != ANY or ANY not in str(rest.module):
        raise UserError("This backbone takes no attention.")
    return config, HydraConfig.instance().cfg, rest


_attention = cache(compose.compose_choice)


def _put(part: Any, settings: Mapping[str, Any]) -> Any:
    """A part of a composition with the settings of the attention in place of any."""
    if isinstance(part, Mapping):
        return {key: _put(value, settings) for key, value in part.items()}
    if isinstance(part, list):
        return [_put(value, settings) for value in part]
    if part == ANY:
        return settings
    if isinstance(part, str) and ANY in part:
        raise UserError("The attention is a part of this value.")
    return part


@dataclass(slots=True, kw_only=True)
class _Cache:
    """The content of the file.

    state: hash of everything that compositions depend on. code: hash of everything else that sizes depend on.
    """

    state: str = ""
    compositions: dict[str, Composition] = field(default_factory=dict)
    code: str = ""
    parameters: dict[str, int] = field(default_factory=dict)
    optimizer_states: dict[str, int] = field(default_factory=dict)
    step_bytes: dict[str, dict[str, int]] = field(default_factory=dict)


_FILE = TypeAdapter(_Cache)


class Compositions:
    """Compositions by their overrides, cached in `compositions.json` in the folder of outputs.

    A composition stays valid until a file changes that runs are composed from, in configs/ or in a folder of the user,
    or the code of a class of the user's in it.
    """

    def __init__(self) -> None:
        self._saved: tuple[int, ...] = ()

    def __getitem__(self, overrides: Iterable[str]) -> Composition:
        """The composition of these overrides. Raises UserError for overrides that do not compose."""
        [composition] = self.all([tuple(overrides)])
        return composition

    def all(
        self, override_lists: Sequence[Sequence[str]], meanwhile: Callable[[], None] | None = None
    ) -> list[Composition]:
        """The composition of each list of overrides. Missing ones are composed, on all cores where there are many.

        Args:
            override_lists: the overrides of each run.
            meanwhile: see `spread`.
        """
        compose.forget_choices()
        _with_any.cache_clear()
        _attention.cache_clear()
        requested = {_key(overrides): overrides for overrides in override_lists}
        known = self._cache.compositions
        missing = {k: overrides for k, overrides in requested.items() if k not in known or _is_outdated(known[k])}
        self._saved = () if missing else self._saved
        ordered = sorted(missing, key=lambda key: sorted(missing[key], key=_is_of_attention))  # equal parts together
        composed = dict(zip(ordered, spread(Composition.of, [missing[k] for k in ordered], meanwhile), strict=True))
        self._cache.compositions |= {
            key: composed[key] for key, o in missing.items() if not _starts_from_a_file(o, composed[key])
        }
        return [
            composed[key] if key in composed else self._cache.compositions[key] for key in map(_key, override_lists)
        ]

    @property
    def parameters(self) -> dict[str, int]:
        """The number of parameters of models by `Setting.family`; valid until code of the package changes."""
        return self._cache.parameters

    @property
    def optimizer_states(self) -> dict[str, int]:
        """The number of optimiser states per parameter by the optimiser's settings; valid as long as `parameters`."""
        return self._cache.optimizer_states

    @property
    def step_bytes(self) -> dict[str, dict[str, int]]:
        """Peak memory of training steps by `Setting.family` and rows; valid as long as `parameters`."""
        return self._cache.step_bytes

    def save(self) -> None:
        """Writes the cache to disk if it has grown; errors of the disk are ignored."""
        if (sizes := _sizes(self._cache)) != self._saved:
            with suppress(OSError), atomic_write(self.path, several=True) as temporary:
                temporary.write_bytes(_FILE.dump_json(self._cache))
            self._saved = sizes

    @cached_property
    def path(self) -> Path:
        """The path of `compositions.json`."""
        paths = OmegaConf.load(choices.CONFIGS / "paths" / "default.yaml")
        return Path(str(OmegaConf.create({"paths": paths}).paths.outputs)) / "compositions.json"

    @cached_property
    def _cache(self) -> _Cache:
        """The valid content of the file; empty where the file is missing or damaged."""
        state, code = _state(), _code()
        cache = _Cache()
        with suppress(OSError, ValueError):
            cache = _FILE.validate_json(self.path.read_bytes())
        cache.compositions = cache.compositions if cache.state == state else {}
        if cache.code != code:
            cache.parameters, cache.optimizer_states, cache.step_bytes = {}, {}, {}
        cache.state, cache.code = state, code
        self._saved = _sizes(cache)
        return cache


def _sizes(cache: _Cache) -> tuple[int, ...]:
    traced = sum(map(len, cache.step_bytes.values()))
    return len(cache.compositions), len(cache.parameters), len(cache.optimizer_states), traced


def _state() -> str:
    """A hash of configurations, the code that composes them, environment variables and the working directory."""
    groups = (path for folder in choices.folders() for path in folder.iterdir() if path.name not in ("table", "figure"))
    files = [file for path in groups for file in (path.rglob("*.yaml") if path.is_dir() else (path,))]
    named = {name for file in files for name in re.findall(rb"\boc\.env:\s*(\w+)", file.read_bytes())}
    environment = [str(Path.cwd()), *(os.environ.get(name.decode()) for name in sorted(named))]
    code = sorted(Path(__file__).parent.glob("*.py"))
    return _digest(
        [*sorted(files), *code, Path(records.__file__)],
        json.dumps([*environment, *_versions("hydra-core", "omegaconf")]),
    )


def _code() -> str:
    return _digest(sorted(Path(subquad.__path__[0]).rglob("*.py")), "".join(_versions("torch", "timm")))


def _versions(*names: str) -> list[str]:
    return [found.version for name in names for found in distributions(name=name)]


def _digest(files: Iterable[Path], start: str = "") -> str:
    digest = hashlib.sha256(start.encode())
    for file in files:
        digest.update(str(file).encode() + file.read_bytes())
    return digest.hexdigest()


def _is_outdated(composition: Composition) -> bool:
    """Whether the code of one of the user's classes in it has changed."""
    return "code" in composition.identity and with_code({**composition.identity}) != composition.identity


def _starts_from_a_file(overrides: Iterable[str], composition: Composition) -> bool:
    """Whether a run starts from weights outside of runs; such a file may change, and the identity with it."""
    paths = [text.partition("=")[2].strip("'\"") for text in overrides if text.lstrip("+").startswith("ckpt_path=")]
    pretrained = (composition.module.get("backbone") or {}).get("pretrained")
    return fingerprint.is_file(pretrained) or any(run_of(Path(path)) is None for path in paths if path != "null")


def _key(overrides: Sequence[str]) -> str:
    """Identifies overrides, whose order has no effect unless one sets a part of what another sets."""
    keys = [override.lstrip("+~").partition("=")[0].split(".") for override in overrides]
    known = {tuple(key) for key in keys}
    nested = len(known) < len(keys) or any(tuple(key[:end]) in known for key in keys for end in range(len(key)))
    return json.dumps(list(overrides) if nested else sorted(overrides))


def _is_of_attention(override: str) -> tuple[bool, str]:
    return override.startswith(("attention=", "attention.")), override
