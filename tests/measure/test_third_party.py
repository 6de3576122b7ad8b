"""Public implementations as layers: installed ones run, others are read from a checkout or reported as missing."""

import sys
from pathlib import Path

import pytest
import torch
from attention.cells import site
from omegaconf import OmegaConf
from runs import ROOT, answer
from torch import nn

from subquad.measure.benchmark import Setting, measure
from subquad.measure.third_party import public
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError

LENGTH, DIM = 512, 32
PLACE = {"query_len": LENGTH, "context_len": LENGTH, "dim": DIM, "heads": 2}
COSFORMER = '''
import torch
from torch import nn

class CosformerAttention(nn.Module):
    """Each token's sum with the one before it, tokens in front of rows."""
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.sizes = embed_dim, num_heads
    def forward(self, query):
        return query + query.roll(1, 0)
'''


@pytest.mark.parametrize("name", ["bigbird", "fnet", "longformer", "nystromformer", "reformer", "yoso"])
def test_layers_of_transformers_mix_tokens_and_train(name: str) -> None:
    factory = public(name, None)
    assert factory is not None
    layer, x = factory(site=site(Pattern.SELF, **PLACE)), torch.randn(2, LENGTH, DIM, requires_grad=True)
    y, _ = layer(x, x, Masks())
    assert y.shape == x.shape
    y[:, 0].square().sum().backward()
    assert x.grad is not None
    assert x.grad[:, 1:].abs().sum() > 0
    assert any(weight.grad is not None for weight in layer.parameters()) or name == "fnet"


def test_nystromformer_has_no_convolution() -> None:
    """Its filters are part of the layer and change nothing, as in the row of configs/peers.yaml."""
    factory = public("nystromformer", None)
    assert factory is not None
    layer, x = factory(site=site(Pattern.SELF, **PLACE)).eval(), torch.randn(1, LENGTH, DIM)
    before = layer(x, x, Masks())[0]
    (convolution,) = (part for part in layer.modules() if isinstance(part, nn.Conv2d))
    nn.init.ones_(convolution.weight)
    assert torch.equal(layer(x, x, Masks())[0], before)


def test_a_checkout_is_read(tmp_path: Path) -> None:
    (tmp_path / "cosFormer").mkdir()
    (tmp_path / "cosFormer/cosformer.py").write_text(COSFORMER)
    factory = public("cosformer", tmp_path)
    assert factory is not None
    layer, x = factory(site=site(Pattern.SELF)), torch.randn(2, 13, 24)
    assert torch.equal(layer(x, x, Masks())[0], x + x.roll(1, 1))
    assert layer.get_submodule("layer").sizes == (24, 4)


@pytest.mark.parametrize("checkouts", [None, Path("/nowhere")])
def test_a_missing_checkout_is_asked_for(checkouts: Path | None) -> None:
    factory = public("flowformer", checkouts)
    assert factory is not None
    with pytest.raises(UserError, match=r"git clone https://github\.com/thuml/Flowformer.* set checkouts="):
        factory(site=site(Pattern.SELF))


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("linformer", "linformer", "linformer"),
        ("performer", "performer_pytorch", "performer-pytorch"),
        ("sinkhorn", "sinkhorn_transformer", "sinkhorn-transformer"),
        ("local", "local_attention", "local-attention"),
    ],
)
def test_a_missing_package_is_asked_for(monkeypatch, name: str, module: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    factory = public(name, None)
    assert factory is not None
    with pytest.raises(UserError, match=f"`pip install {package}` brings the public code"):
        factory(site=site(Pattern.SELF))


def test_only_mechanisms_of_the_table_have_public_code() -> None:
    rows = {row.attention for row in OmegaConf.load(ROOT / "configs/peers.yaml").peers}
    assert {name for name in rows if public(name, None) is None} == {
        "attention_bn", "attention_sh", "dba", "ecoformer", "linear", "luna",
    }  # fmt: skip


@pytest.mark.slow
def test_it_is_measured_beside_ours() -> None:
    factory = public("fnet", None)
    assert factory is not None
    setting = Setting(level="layer", mode="training", length=64, dim=32)
    measured = measure({"public": factory, "ours": factory}, setting, rounds=1)
    assert measured["public"].peak == measured["ours"].peak > 0


@pytest.mark.slow
def test_the_script_shows_the_ratio_of_this_run() -> None:
    """No peer was measured at 64 tokens before, and nothing is "-"."""
    overrides = ["attention=[fnet]", "public=true", "lengths=[64]", "rounds=1"]
    shown = answer("scripts/bench_peers.py", *overrides).stdout
    assert "the peers' in this run" in " ".join(shown.split())
    rows = [line.split("│") for line in shown.splitlines() if "fnet" in line]
    assert len(rows) == 2
    assert all(float(row[8]) > 0 and row[13].strip() in ("met", "above") for row in rows)


def test_everything_missing_is_reported_at_once(tmp_path: Path) -> None:
    overrides = ["attention=[cosformer,fnet,transformer_ls]", "public=true", f"checkouts={tmp_path}"]
    done = answer("scripts/bench_peers.py", *overrides)
    assert done.returncode == 1
    assert not done.stdout
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["cosformer", "transformer_ls"]
