"""What is changed in Hydra is as expected there, files are parsed once, and compositions share no objects."""

import subprocess
import sys

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from runs import ROOT

from subquad.config.hydra_internals import parse_files_once


@pytest.fixture
def composed(tmp_path):
    parse_files_once()
    (tmp_path / "size").mkdir()
    (tmp_path / "size" / "small.yaml").write_text("dim: 8\n")
    (tmp_path / "main.yaml").write_text("defaults: [{size: small}, _self_]\nseed: 0\nlimits: {steps: 5}\n")

    def run(*overrides):
        with initialize_config_dir(str(tmp_path), version_base="1.3"):
            return compose("main", list(overrides))

    return run


def test_a_file_is_parsed_again_only_where_it_changed(composed, tmp_path, monkeypatch):
    parsed = []
    load = OmegaConf.load
    monkeypatch.setattr(OmegaConf, "load", lambda file: (parsed.append(file), load(file))[1])
    assert composed().size.dim == 8
    parsed.clear()
    assert composed("seed=1").size.dim == 8
    assert parsed == []
    (tmp_path / "size" / "small.yaml").write_text("dim: 9\n")
    assert composed().size.dim == 9


def test_compositions_share_nothing(composed):
    first = composed()
    OmegaConf.set_struct(first, False)
    first.size.dim = first.limits.steps = 1
    first.limits.more = 2
    assert composed() == {"size": {"dim": 8}, "seed": 0, "limits": {"steps": 5}}


def test_interpolations_in_defaults_are_followed(composed, tmp_path):
    (tmp_path / "size" / "large.yaml").write_text("dim: 64\n")
    (tmp_path / "extra").mkdir()
    for name in ("small", "large"):
        (tmp_path / "extra" / f"{name}.yaml").write_text(f"name: {name}\n")
    (tmp_path / "main.yaml").write_text("defaults:\n  - size: small\n  - extra: ${size}\n  - _self_\n")
    assert composed("size=large").extra.name == "large"


EXPECTED = """
hydra._internal.config_loader_impl:ConfigLoaderImpl._compose_config_from_defaults_list self defaults repo
hydra._internal.config_loader_impl:ConfigLoaderImpl._embed_result_config ret package_override
hydra._internal.config_loader_impl:ConfigLoaderImpl._load_single_config self default repo
hydra._internal.config_loader_impl:ConfigLoaderImpl.load_configuration \
self config_name overrides run_mode from_shell validate_sweep_overrides
hydra._internal.config_repository:ConfigRepository._find_object_source self config_path object_type
hydra._internal.config_repository:ConfigRepository.load_config self config_path
hydra._internal.defaults_list:_create_interpolation_map overrides defaults_list self_added
hydra._internal.utils:run_and_report func
hydra.core.override_parser.overrides_parser:OverridesParser.parse_rule self s rule_name
hydra.core.utils:_save_config cfg filename output_dir
hydra.version:_get_version ver
omegaconf._utils:get_yaml_loader
omegaconf._utils:parse value parser_rule lexer_mode
omegaconf.base:parse value parser_rule lexer_mode
"""
"""Functions that subquad.config.hydra_internals replaces or calls, with the parameters that it relies on."""


def test_hydra_has_what_is_changed_here():
    """In a process of its own, in which nothing is changed yet."""
    code = """
import inspect, pkgutil, sys
for name in sys.argv[1:]:
    try:
        print(name, *inspect.signature(pkgutil.resolve_name(name)).parameters)
    except AttributeError as error:
        print(error)
"""
    expected = EXPECTED.strip().splitlines()
    names = [line.split()[0] for line in expected]
    found = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == expected


def test_no_other_file_uses_what_is_not_public():
    users = [path.name for path in (ROOT / "src").rglob("*.py") if "hydra._internal" in path.read_text()]
    assert users == ["hydra_internals.py"]
