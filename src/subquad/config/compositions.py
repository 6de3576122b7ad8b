"""What command lines compose to, and the sizes of their models, kept on disk: no command finds either out twice."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from pydantic import TypeAdapter

import subquad
from subquad import records
from subquad.config import choices, compose, fingerprint
from subquad.config.fingerprint import identity, mechanism, run_of
from subquad.utils.atomic import whole
from subquad.utils.spread import spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """What a run without its seed is: its folder up to the seed, the folder of all outputs, and resolved settings.

    attention: the choice of attention, or of the backbone where it takes none. identity: see
    `subquad.config.fingerprint`. data, module: settings of the data and of the task's module, with the paths of this
    machine.
    """

    folder: str
    outputs: str
    attention: str
    identity: Mapping[str, Any]
    data: Mapping[str, Any]
    module: Mapping[str, Any]

    @classmethod
    def of(cls, words: Sequence[str]) -> "Composition":
        """Composes `python train.py <words>`. Raises UserError where the words do not compose."""
        config = compose.compose_run([*words, "seed=0"])
        data, module = (OmegaConf.to_container(part, resolve=True) for part in (config.data, config.task.module))
        return cls(
            folder=str(config.paths.run).removesuffix("-s0"),
            outputs=str(config.paths.outputs),
            attention=mechanism(config),
            identity=identity(config),
            data=cast(dict[str, Any], data),
            module=cast(dict[str, Any], module),
        )


@dataclass(slots=True, kw_only=True)
class _Kept:
    """The file. `state` names what compositions depend on, `code` what sizes depend on beside them."""

    state: str = ""
    compositions: dict[str, Composition] = field(default_factory=dict)
    code: str = ""
    parameters: dict[str, int] = field(default_factory=dict)
    optimizer_states: dict[str, int] = field(default_factory=dict)


_FILE = TypeAdapter(_Kept)


class Compositions:
    """Compositions by their words, valid for as long as no file of configs/ changes that a run is composed of.

    They are kept in `compositions.json` of the folder of outputs, which only saves time: without it all is composed.
    """

    def __init__(self) -> None:
        self._saved = (0, 0, 0)

    def __getitem__(self, words: Iterable[str]) -> Composition:
        """The composition of these words. Raises UserError where they do not compose."""
        [found] = self.all([tuple(words)])
        return found

    def all(self, every: Sequence[Sequence[str]], meanwhile: Callable[[], None] | None = None) -> list[Composition]:
        """Those of each of these lists of words; what is not known is composed, on all cores where it is much.

        meanwhile: see `spread`.
        """
        asked = {_key(words): words for words in every}
        left = {key: words for key, words in asked.items() if key not in self._kept.compositions}
        found = dict(zip(left, spread(Composition.of, list(left.values()), meanwhile), strict=True))
        self._kept.compositions |= {key: found[key] for key, words in left.items() if not _starts_from_a_file(words)}
        return [found[key] if key in found else self._kept.compositions[key] for key in map(_key, every)]

    @property
    def parameters(self) -> dict[str, int]:
        """How many parameters models have, by `Setting.family`; valid for as long as no code of the package changes."""
        return self._kept.parameters

    @property
    def optimizer_states(self) -> dict[str, int]:
        """How many numbers optimisers keep for each parameter, by their settings; valid for as long as `parameters`."""
        return self._kept.optimizer_states

    def save(self) -> None:
        """Keeps what is new for the next command, where the disk takes it."""
        if (sizes := _sizes(self._kept)) != self._saved:
            with suppress(OSError), whole(self.path, several=True) as place:
                place.write_bytes(_FILE.dump_json(self._kept))
            self._saved = sizes

    @cached_property
    def path(self) -> Path:
        """The file."""
        paths = OmegaConf.load(choices.CONFIGS / "paths" / "default.yaml")
        return Path(str(OmegaConf.create({"paths": paths}).paths.outputs)) / "compositions.json"

    @cached_property
    def _kept(self) -> _Kept:
        """What the file has that is still valid; nothing where it is missing or damaged."""
        state, code = _state(), _code()
        kept = _Kept()
        with suppress(OSError, ValueError):
            kept = _FILE.validate_json(self.path.read_bytes())
        kept.compositions = kept.compositions if kept.state == state else {}
        if kept.code != code:
            kept.parameters, kept.optimizer_states = {}, {}
        kept.state, kept.code = state, code
        self._saved = _sizes(kept)
        return kept


def _sizes(kept: _Kept) -> tuple[int, int, int]:
    return len(kept.compositions), len(kept.parameters), len(kept.optimizer_states)


def _state() -> str:
    """Names what compositions depend on: configurations, the code that names runs, variables and the working folder."""
    place = [str(Path.cwd()), *(os.environ.get(name) for name in ("SUBQUAD_OUTPUTS", "SUBQUAD_DATA"))]
    groups = (path for path in choices.CONFIGS.iterdir() if path.name not in ("table", "figure"))
    files = (file for path in groups for file in (path.rglob("*.yaml") if path.is_dir() else (path,)))
    return _digest([*sorted(files), Path(fingerprint.__file__), Path(records.__file__)], json.dumps(place))


def _code() -> str:
    return _digest(sorted(Path(subquad.__path__[0]).rglob("*.py")), "".join(map(version, ("torch", "timm"))))


def _digest(files: Iterable[Path], start: str = "") -> str:
    digest = hashlib.sha256(start.encode())
    for file in files:
        digest.update(str(file).encode() + file.read_bytes())
    return digest.hexdigest()


def _starts_from_a_file(words: Iterable[str]) -> bool:
    """Whether a run starts from weights that are not those of a run: the file may change, and with it the identity."""
    given = [word.partition("=")[2].strip("'\"") for word in words if word.startswith("ckpt_path=")]
    return any(run_of(Path(path)) is None for path in given if path != "null")


def _key(words: Sequence[str]) -> str:
    return json.dumps(list(words))
