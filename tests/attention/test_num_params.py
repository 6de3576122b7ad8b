"""Parameters of every mechanism at one fixed site, against recorded counts and against formulas.

A count that is meant to change is recorded anew by `pytest tests/attention/test_num_params.py --record-golden`.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import encoders, made, mechanisms

from subquad.attention.base import Attention
from subquad.backbones.encoder import StandaloneEncoder, sized
from subquad.config.compose import load_factory
from subquad.specs import DataSpec, Pattern, Site

GOLDEN = Path(__file__).parents[1] / "golden" / "num_params.json"
D, N, HEADS = 256, 512, 4
LINEAR = D * D + D
REMEDY = "run `pytest tests/attention/test_num_params.py --record-golden` and read the diff"


def counts(factory: Callable[..., Attention]) -> dict[str, int]:
    """Parameters in each declared wiring, in the first of two layers."""
    by_pattern = {}
    for pattern in Pattern:
        site = Site(pattern=pattern, dim=D, heads=HEADS, query_len=N, context_len=N, layer=0, layers=2)
        if pattern in factory.func.patterns:
            by_pattern[pattern.value] = sum(p.numel() for p in factory(site=site).parameters())
    return by_pattern


def count_of_encoder(factory: Callable[..., StandaloneEncoder]) -> dict[str, int]:
    """Parameters of a whole encoder for 17 tokens and 10 classes."""
    spec = DataSpec(max_len=N, vocab=17, classes=10)
    encoder = sized(factory, dim=D, heads=HEADS, ffn=2 * D)(spec=spec)
    return {"encoder": sum(p.numel() for p in encoder.parameters())}


@pytest.mark.slow
def test_golden_counts(request: pytest.FixtureRequest) -> None:
    now = {name: counts(made("attention", name)) for name in mechanisms()}
    now |= {name: count_of_encoder(load_factory(f"backbone={name}")) for name in encoders()}
    if request.config.getoption("--record-golden"):
        GOLDEN.write_text(json.dumps(now, indent=2) + "\n")
    recorded = json.loads(GOLDEN.read_text())
    assert sorted(recorded) == sorted(now), REMEDY
    assert recorded == now, REMEDY


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("softmax", Pattern.SELF, 4 * LINEAR),
        ("linear", Pattern.CROSS, 4 * LINEAR),
        ("linformer", Pattern.SELF, 4 * LINEAR + 2 * N * 256),
        ("linformer_none", Pattern.SELF, 4 * LINEAR + 2 * HEADS * N * 256),
        ("linformer_kv", Pattern.SELF, 4 * LINEAR + N * 256),
        ("linformer_layer", Pattern.CROSS, 4 * LINEAR + N * 256),
        ("linformer_mean", Pattern.SELF, 4 * LINEAR),
        ("linformer_conv", Pattern.SELF, 4 * LINEAR + 2 * D * 2),
        ("luna", Pattern.SELF, 6 * LINEAR + D * D + 16 * D + 2 * D),
        ("dba", Pattern.SELF, 4 * LINEAR + 24 * D + 2 * 16 * (D + 1) + 16 * D),
        ("dba", Pattern.CROSS, 5 * LINEAR + 24 * D + 16 * (D + 1) + 16 * D),
        ("dba_full_d", Pattern.SELF, 4 * LINEAR + 2 * 16 * (D + 1) + 16 * D),
        ("dba_full_n", Pattern.SELF, 4 * LINEAR + 24 * D),
        ("dba_released", Pattern.SELF, 3 * LINEAR + 24 * (4 * D + 2) + HEADS * 16 * (D + 1) + 16 * D + 2 * D),
    ],
)
def test_counts_by_hand(name: str, pattern: Pattern, expected: int) -> None:
    assert counts(made("attention", name))[pattern.value] == expected
