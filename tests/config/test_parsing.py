"""Configuration files are parsed once per process and when they change, and compositions share no objects."""

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from subquad.config.parsing import parse_files_once


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
