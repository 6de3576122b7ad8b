"""What command lines compose to, and the sizes of their models, kept on disk: no command finds either out twice."""

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from pydantic import TypeAdapter

import subquad
from subquad import records
from subquad.atomic import whole
from subquad.cores import usable_cores
from subquad.run import doors
from subquad.run import identity as identity_module
from subquad.run.identity import identity, run_of

_AT_ONCE = 20
"""Fewer compositions than these are not worth more processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """What a run without its seed is: its folder up to the seed, the folder of all outputs, and resolved settings.

    attention: the choice. identity: see `subquad.run.identity.identity`. data, module: settings of the data and of the
    task's module, with the paths of this machine.
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
        config = doors.compose_run([*words, "seed=0"])
        data, module = (OmegaConf.to_container(part, resolve=True) for part in (config.data, config.task.module))
        return cls(
            folder=str(config.paths.run).removesuffix("-s0"),
            outputs=str(config.paths.outputs),
            attention=str(HydraConfig.get().runtime.choices["attention"]),
            identity=identity(config),
            data=cast(dict[str, Any], data),
            module=cast(dict[str, Any], module),
        )


@dataclass(slots=True, kw_only=True)
class _Kept:
    """The file. `state` names what compositions depend on, `code` what parameters depend on beside them."""

    state: str = ""
    compositions: dict[str, Composition] = field(default_factory=dict)
    code: str = ""
    parameters: dict[str, int] = field(default_factory=dict)


_FILE = TypeAdapter(_Kept)


class Compositions:
    """Compositions by their words, valid for as long as no file of configs/ changes that a run is composed of.

    They are kept in `compositions.json` of the folder of outputs, which only saves time: without it all is composed.
    """

    def __init__(self) -> None:
        self._saved = (0, 0)

    def __getitem__(self, words: Iterable[str]) -> Composition:
        """The composition of these words. Raises UserError where they do not compose."""
        [found] = self.all([tuple(words)])
        return found

    def all(self, every: Sequence[Sequence[str]]) -> list[Composition]:
        """Those of each of these lists of words; what is not known is composed, on all cores where it is much."""
        asked = {_key(words): words for words in every}
        left = {key: words for key, words in asked.items() if key not in self._kept.compositions}
        found = dict(zip(left, _composed(list(left.values())), strict=True))
        self._kept.compositions |= {key: found[key] for key, words in left.items() if not _starts_from_a_file(words)}
        return [found[key] if key in found else self._kept.compositions[key] for key in map(_key, every)]

    @property
    def parameters(self) -> dict[str, int]:
        """How many parameters models have, by `Setting.family`; valid for as long as no code of the package changes."""
        return self._kept.parameters

    def save(self) -> None:
        """Keeps what is new for the next command, where the disk takes it."""
        if (sizes := self._sizes()) != self._saved:
            with suppress(OSError), whole(self.path, several=True) as place:
                place.write_bytes(_FILE.dump_json(self._kept))
            self._saved = sizes

    @cached_property
    def path(self) -> Path:
        """The file."""
        paths = OmegaConf.load(doors.CONFIGS / "paths" / "default.yaml")
        return Path(str(OmegaConf.create({"paths": paths}).paths.outputs)) / "compositions.json"

    @cached_property
    def _kept(self) -> _Kept:
        """What the file has that is still valid; nothing where it is missing or damaged."""
        state, code = _state(), _code()
        kept = _Kept()
        with suppress(OSError, ValueError):
            kept = _FILE.validate_json(self.path.read_bytes())
        kept.compositions = kept.compositions if kept.state == state else {}
        kept.parameters = kept.parameters if kept.code == code else {}
        kept.state, kept.code = state, code
        self._saved = len(kept.compositions), len(kept.parameters)
        return kept

    def _sizes(self) -> tuple[int, int]:
        return len(self._kept.compositions), len(self._kept.parameters)


def _state() -> str:
    """Names what compositions depend on: configurations, the code that names runs, variables and the working folder."""
    place = [str(Path.cwd()), *(os.environ.get(name) for name in ("SUBQUAD_OUTPUTS", "SUBQUAD_DATA"))]
    groups = (path for path in doors.CONFIGS.iterdir() if path.name not in ("table", "figure"))
    files = (file for path in groups for file in (path.rglob("*.yaml") if path.is_dir() else (path,)))
    return _digest([*sorted(files), Path(identity_module.__file__), Path(records.__file__)], json.dumps(place))


def _code() -> str:
    return _digest(sorted(Path(subquad.__path__[0]).rglob("*.py")))


def _digest(files: Iterable[Path], start: str = "") -> str:
    digest = hashlib.sha256(start.encode())
    for file in files:
        digest.update(str(file).encode() + file.read_bytes())
    return digest.hexdigest()


def _composed(every: Sequence[Sequence[str]]) -> Iterable[Composition]:
    """Composes each; on all cores where they are many and no thread of this process would be cut in two by a fork."""
    workers = min(usable_cores(), len(every) // _AT_ONCE + 1)
    if workers == 1 or threading.active_count() > 1:
        return map(Composition.of, every)
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        return list(pool.map(Composition.of, every, chunksize=8))


def _starts_from_a_file(words: Iterable[str]) -> bool:
    """Whether a run starts from weights that are not those of a run: the file may change, and with it the identity."""
    given = [word.partition("=")[2].strip("'\"") for word in words if word.startswith("ckpt_path=")]
    return any(run_of(Path(path)) is None for path in given if path != "null")


def _key(words: Sequence[str]) -> str:
    return json.dumps(list(words))
