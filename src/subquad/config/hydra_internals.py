"""All that changes parts of Hydra and OmegaConf that are not public: faster compositions, errors in one sentence.

No other file imports such parts. tests/config/test_hydra_internals.py names those that a new version of
Hydra no longer has as they are expected here. Without these changes all would run, slower and with the messages of
Hydra.
"""

import abc
import copy
import functools
import gc
import itertools
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra.version
import omegaconf._utils
import omegaconf.base
from hydra._internal import defaults_list
from hydra._internal import utils as hydra_utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core import utils as core_utils
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import CompactHydraException
from hydra.plugins.config_source import ConfigResult
from omegaconf import (
    Container,
    DictConfig,
    ListConfig,
    Node,
    OmegaConf,
    UnionNode,
    ValueNode,
    flag_override,
    grammar_parser,
)
from omegaconf._utils import get_yaml_loader
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from subquad.records import RESULT
from subquad.utils.atomic import atomic_write


@functools.cache
def parse_files_once() -> None:
    """Patches Hydra and OmegaConf so that later compositions of this process reuse parsed files and interpolations.

    Hydra parses some 25 files for each run that it composes, and spends as much time again on copying them, on
    interpolations in defaults lists that have none, and on traversing the result after each merged file. OmegaConf
    parses each interpolation whenever it is resolved. A sweep, a table or a test session composes hundreds of runs from
    the same files. A composition creates so many objects that the garbage collector would traverse those of all
    imported modules about once per run; objects that exist now are excluded. A tenth of the time is `isinstance` of
    OmegaConf's abstract classes, which asks for virtual subclasses; there are none.
    """
    gc.freeze()
    for owner in (Node, ValueNode, UnionNode, Container, BaseContainer, DictConfig, ListConfig):
        setattr(owner, "__class__", _WithoutVirtualSubclasses)  # noqa: B010
    parse = functools.lru_cache(maxsize=4096)(grammar_parser.parse)  # parse trees are only read, so sharing is safe
    for module in (omegaconf.base, omegaconf._utils):
        setattr(module, "parse", parse)  # noqa: B010
    setattr(OverridesParser, "parse_rule", _parsing_once(OverridesParser.parse_rule))  # noqa: B010
    setattr(ConfigRepository, "load_config", _remembering(ConfigRepository.load_config))  # noqa: B010
    setattr(hydra.version, "_get_version", functools.cache(hydra.version._get_version))  # noqa: B010
    setattr(defaults_list, "_create_interpolation_map", _where_needed(defaults_list._create_interpolation_map))  # noqa: B010
    setattr(ConfigRepository, "__deepcopy__", lambda self, memo: copy.copy(self))  # noqa: B010  # to replace its sources
    setattr(omegaconf._utils, "get_yaml_loader", functools.cache(lambda: _parsing_in_c(get_yaml_loader())))  # noqa: B010
    loader: Any = ConfigLoaderImpl
    loader._embed_result_config = staticmethod(_embedding_once(loader._embed_result_config))
    loader._compose_config_from_defaults_list = _merging_at_once(loader._compose_config_from_defaults_list)


def _parsing_in_c(loader: Any) -> Any:
    """OmegaConf's class to load YAML with libyaml's parser, which takes a fifth of the time; not in every PyYAML.

    What libyaml refuses is parsed again in Python, which takes some more and says better what is wrong.
    """
    try:
        from yaml.cyaml import CParser
    except ImportError:
        return loader

    def create(self: Any, stream: Any) -> None:
        self.text = stream if isinstance(stream, str | bytes) else stream.read()
        self.file = getattr(stream, "name", None)
        CParser.__init__(self, self.text)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)

    def get_single_data(self: Any) -> Any:
        try:
            return super(quick, self).get_single_data()
        except (YAMLError, UnicodeError):
            slow = loader(self.text)
            slow.name = self.file or slow.name
            return slow.get_single_data()

    quick: Any = type("Loader", (CParser, loader), {"__init__": create, "get_single_data": get_single_data})
    return quick


class _WithoutVirtualSubclasses(abc.ABCMeta):
    __instancecheck__ = type.__instancecheck__


def _parsing_once(parse: Any) -> Any:
    """`OverridesParser.parse_rule` with a cache. Each call returns a copy, which the caller may change."""
    parser = OverridesParser.create()
    parsed = functools.lru_cache(maxsize=4096)(functools.partial(parse, parser))

    @functools.wraps(parse)
    def parse_rule(self: OverridesParser, s: str, rule_name: str) -> Any:
        return copy.copy(parsed(s, rule_name))

    return parse_rule


class _ParsedFile(ConfigResult):
    """A loaded file. Each copy has its own configuration, created at its first use: most callers need the header only.

    file: identifies the file and its state.
    """

    def __init__(self, result: ConfigResult, file: tuple[str | int, ...]) -> None:
        vars(self).update({key: value for key, value in vars(result).items() if key != "config"})
        self.file, self._pickled, self._config = file, pickle.dumps(result.config), None

    @property
    def config(self) -> Any:
        if self._config is None:
            self._config = pickle.loads(self._pickled)
        return self._config

    @config.setter
    def config(self, config: Any) -> None:
        self._config = config


def _remembering(load: Any) -> Any:
    """`ConfigRepository.load_config` with a cache. Callers may change the configuration that they load."""
    parsed: dict[tuple[str | int, ...], _ParsedFile] = {}

    @functools.wraps(load)
    def load_config(self: ConfigRepository, config_path: str) -> Any:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or (source.scheme() == "structured" and not config_path.startswith("hydra/")):
            return load(self, config_path)
        scheme = source.scheme()
        key: tuple[str | int, ...] = (scheme, source.path, source.provider, config_path)
        if scheme == "file":  # files of installed packages do not change
            state = os.stat(os.path.join(source.path, source._normalize_file_name(config_path)))
            key += (state.st_mtime_ns, state.st_ctime_ns, state.st_size)
        if key not in parsed:
            parsed[key] = _ParsedFile(load(self, config_path), key)
        return copy.copy(parsed[key])

    return load_config


def _embedding_once(embed: Any) -> Any:
    """`ConfigLoaderImpl._embed_result_config`, which puts a file in its package, with a cache by file."""
    embedded: dict[Any, bytes] = {}

    @functools.wraps(embed)
    def embed_result_config(result: Any, package: str | None) -> Any:
        if not hasattr(result, "file"):
            return embed(result, package)
        key = (result.file, package)
        if key not in embedded:
            embedded[key] = pickle.dumps(embed(result, package))
        return pickle.loads(embedded[key])

    return embed_result_config


def _merging_at_once(compose: Any) -> Any:
    """`ConfigLoaderImpl._compose_config_from_defaults_list`, but merging all files in one call.

    The files that configure Hydra come first and are the same for most runs, so their merged result is cached. If the
    files cannot be merged, Hydra merges them one by one to report which of them is wrong.
    """
    merged: dict[Any, bytes] = {}

    @functools.wraps(compose)
    def compose_config(self: Any, defaults: Sequence[Any], repo: Any) -> Any:
        files = [getattr(repo.load_config(default.config_path), "file", None) for default in defaults]
        if None in files:
            return compose(self, defaults, repo)
        hydra_defaults = list(itertools.takewhile(lambda default: default.config_path.startswith("hydra/"), defaults))
        key = tuple((file, default.package) for file, default in zip(files, hydra_defaults, strict=False))
        if key not in merged:
            merged[key] = pickle.dumps(compose(self, hydra_defaults, repo))
        config = pickle.loads(merged[key])
        others = [self._load_single_config(default, repo).config for default in defaults[len(hydra_defaults) :]]
        try:
            with flag_override(config, "no_deepcopy_set_nodes", True):
                config.merge_with(*others)
        except OmegaConfBaseException:
            return compose(self, defaults, repo)
        return config

    return compose_config


def _where_needed(create: Any) -> Any:
    """`_create_interpolation_map`, called only for defaults lists with interpolations, and with the list if needed."""

    @functools.wraps(create)
    def create_interpolation_map(overrides: Any, defaults: Any, self_added: bool) -> Any:
        interpolations = [text for text in map(repr, defaults) if "${" in text]
        listed = defaults if any("defaults" in text for text in interpolations) else []
        return create(overrides, listed, self_added) if interpolations else None

    return create_interpolation_map


@functools.cache
def wrap_loading(wrapper: Callable[[Any], Any]) -> None:
    """Replaces the function that composes every configuration by what `wrapper` makes of it."""
    setattr(ConfigLoaderImpl, "load_configuration", wrapper(ConfigLoaderImpl.load_configuration))  # noqa: B010


@functools.cache
def mend_starting(told: Callable[[Callable[[], Any]], Any]) -> None:
    """Makes Hydra write the files of `.hydra` atomically, and call its main function through `told`.

    A finished run, which has these files, is shown where they cannot be written too. Of a failed job, Hydra prints the
    overrides before its error; where that is a message for the user, it is raised alone.
    """
    report = hydra_utils.run_and_report
    returned: property = vars(core_utils.JobReturn)["return_value"]

    def save_config(config: DictConfig, filename: str, output_dir: Path) -> None:
        try:
            with atomic_write(output_dir / filename, several=True) as place:
                place.write_text(OmegaConf.to_yaml(config), encoding="utf-8")
        except OSError:
            if not (output_dir.parent / RESULT).exists():
                raise

    def return_value(job: core_utils.JobReturn) -> Any:
        if isinstance(job._return_value, CompactHydraException):
            raise job._return_value
        return returned.__get__(job)

    setattr(core_utils, "_save_config", save_config)  # noqa: B010
    setattr(hydra_utils, "run_and_report", lambda function: report(lambda: told(function)))  # noqa: B010
    setattr(core_utils.JobReturn, "return_value", returned.getter(return_value))  # noqa: B010
