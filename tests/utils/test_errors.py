"""Sentences for packages of extras that are not installed, and for classes that cannot be imported."""

import sys
from importlib import import_module

import pytest
from hydra.utils import get_object
from runs import TINY, composed, trained

from subquad import build_model
from subquad.cli import check_attention
from subquad.report import wandb_report
from subquad.specs import ImageSpec
from subquad.utils.errors import UserError, explain

SMOKE = ("data=synthetic", "scale=smoke", "attention=softmax")


@pytest.fixture
def without(monkeypatch):
    """Hides a package, as if it were not installed."""

    def hide(package: str) -> None:
        for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
            monkeypatch.setitem(sys.modules, name, None)

    return hide


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("timm", "vision"), ("transformers", "text"), ("tokenizers", "text"), ("h5py", "vqa"), ("submitit", "slurm"),
        ("tensorboard", "tensorboard"), ("optuna", "optuna"), ("ray", "ray"), ("wandb_workspaces", "dashboards"),
        ("pytest", "contract"), ("onnxruntime", "onnx"), ("torch", None), ("nowhere", None),
    ],
)  # fmt: skip
def test_the_extra_of_a_missing_package_is_named(package, extra, without):
    without(package)
    with pytest.raises(ModuleNotFoundError) as missing:
        import_module(package)
    sentence = None if extra is None else f"{package} is not installed; pip install 'subquad[{extra}]'."
    assert sentence == (extra and str(explain(missing.value)))
    assert extra is not None or explain(missing.value) is None


@pytest.mark.parametrize(
    ("overrides", "package", "extra"),
    [
        (["task=digits", "backbone=vit"], "timm", "vision"),
        (["task=mlm/text"], "transformers", "text"),
        (["task=uea/basic_motions", "logger=tensorboard", *TINY], "tensorboard", "tensorboard"),
    ],
)
def test_a_task_without_its_extra_is_one_sentence(overrides, package, extra, without, tmp_path, monkeypatch):
    without(package)
    monkeypatch.setattr("lightning_fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE", False)  # Lightning's own search
    with pytest.raises(Exception) as missing:  # noqa: PT011  Hydra wraps it
        trained(composed(tmp_path / "data", tmp_path / "outputs", *SMOKE, *overrides))
    assert str(explain(missing.value)) == f"{package} is not installed; pip install 'subquad[{extra}]'."


def test_a_model_a_report_and_the_contract_name_their_extras(without, capsys):
    for package in ("timm", "wandb_workspaces", "pytest"):
        without(package)
    with pytest.raises(UserError, match=r"pip install 'subquad\[vision\]'"):
        build_model("vit", ImageSpec(side=32, channels=3, classes=10))
    with pytest.raises(ModuleNotFoundError) as missing:
        wandb_report.report(None, None, [], None, "")
    assert "subquad[dashboards]" in str(explain(missing.value))
    assert not check_attention._contract("softmax", [])
    assert "The contract is left out: pytest is not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("a_module.Mina", "a_module has no Mina; correct the name"),
        ("broken.Mine", r"broken.py has an error in line 2 \(.*\); correct it"),
        ("nowhere.Mine", r"nowhere.Mine cannot be imported \(ModuleNotFound.*run this in the folder of its module"),
    ],
)
def test_the_cause_of_a_failed_import_is_named(target, message, tmp_path, monkeypatch):
    (tmp_path / "a_module.py").touch()
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as raised:
        get_object(target)
    with pytest.raises(UserError, match=message):
        raise explain(raised.value)
