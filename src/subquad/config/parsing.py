"""Makes Hydra compose configurations in less than half of the time, by caching what many of them share."""

import copy
import functools
import itertools
import os
import pickle
from collections.abc import Sequence
from typing import Any

import omegaconf._utils
import omegaconf.base
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import flag_override, grammar_parser
from omegaconf.errors import OmegaConfBaseException


@functools.cache
def parse_files_once() -> None:
    """Patches Hydra and OmegaConf so that later compositions of this process reuse parsed files and interpolations.

    Hydra parses some 25 files for each run that it composes, and spends as much time again on copying them, on
    interpolations in defaults lists that have none, and on traversing the result after each merged file. OmegaConf
    parses each interpolation whenever it is resolved. A sweep, a table or a test session composes hundreds of runs from
    the same files.
    """
    parse = functools.lru_cache(maxsize=4096)(grammar_parser.parse)  # parse trees are only read, so sharing is safe
    for module in (omegaconf.base, omegaconf._utils):
        setattr(module, "parse", parse)  # noqa: B010
    setattr(OverridesParser, "parse_rule", _parsing_once(OverridesParser.parse_rule))  # noqa: B010
    setattr(ConfigRepository, "load_config", _remembering(ConfigRepository.load_config))  # noqa: B010
    setattr(defaults_list, "_create_interpolation_map", _where_needed(defaults_list._create_interpolation_map))  # noqa: B010
    setattr(ConfigRepository, "__deepcopy__", lambda self, memo: copy.copy(self))  # noqa: B010  # to replace its sources
    loader: Any = ConfigLoaderImpl
    loader._embed_result_config = staticmethod(_embedding_once(loader._embed_result_config))
    loader._compose_config_from_defaults_list = _merging_at_once(loader._compose_config_from_defaults_list)


def _parsing_once(parse: Any) -> Any:
    """`OverridesParser.parse_rule` with a cache. Each call returns a copy, which the caller may change."""
    parser = OverridesParser.create()
    parsed = functools.lru_cache(maxsize=4096)(functools.partial(parse, parser))

    @functools.wraps(parse)
    def parse_rule(self: OverridesParser, s: str, rule_name: str) -> Any:
        return copy.copy(parsed(s, rule_name))

    return parse_rule


def _remembering(load: Any) -> Any:
    """`ConfigRepository.load_config` with a cache; pickled, because callers change the configuration that they load.

    The attribute `file` of a result identifies the file and its state.
    """
    parsed: dict[tuple[str | int, ...], bytes] = {}

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
            result = load(self, config_path)
            result.file = key
            parsed[key] = pickle.dumps(result)
        return pickle.loads(parsed[key])

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
