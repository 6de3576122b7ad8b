"""Fitted exponents of known laws, the error to softmax of known attentions, and the printed report."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import made, mechanisms
from runs import ROOT, answer

from subquad.attention.base import Projections, StatelessAttention
from subquad.cli.check_attention import CONTRACTS, REMEDIES, TESTS
from subquad.config.compose import load_attention
from subquad.measure import scaling as scaling_module
from subquad.measure.growth import crossover, exponent
from subquad.measure.scaling import (
    Scaling,
    error_to_softmax,
    is_linear,
    scaling,
    stated_complexity,
)
from subquad.specs import Masks, Pattern, Site


class Scaled(StatelessAttention):
    """Softmax attention times a factor: its error is known."""

    patterns = frozenset(Pattern)
    complexity = "time O(n²d), memory O(n)"
    approximates_softmax = True

    def __init__(self, site: Site, factor: float) -> None:
        super().__init__(site)
        self.factor = factor
        self.projections = Projections(site.dim, site.heads)
        torch.nn.init.zeros_(self.projections.out.bias)

    def attend(self, x: torch.Tensor, context: torch.Tensor, masks: Masks) -> torch.Tensor:
        q, k, v = self.projections.qkv(x, context)
        return self.factor * self.projections.merge(torch.nn.functional.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(power: float) -> None:
    assert exponent({n: 3 * n**power for n in (1024, 4096, 16384)}) == pytest.approx(power)


def scaling_of(times: dict[int, list[float]], memory: float = 1.0) -> Scaling:
    return Scaling(rounds={n: tuple(each) for n, each in times.items()}, peak={n: int(n**memory) for n in times})


@pytest.mark.parametrize(
    ("times", "memory", "verdict"),
    [
        ({1024: [1, 9, 1, 1], 4096: [4, 4, 4, 9], 16384: [99, 16, 16, 16]}, 1.0, "holds"),  # slow rounds
        ({1024: [1, 1], 4096: [16, 16], 16384: [256, 256]}, 1.0, "fails"),
        ({4096: [97, 97], 8192: [20.7, 20.7], 16384: [339, 339]}, 1.0, "unsure"),  # not monotone
        ({1024: [1, 1], 4096: [4, 7], 16384: [16, 50]}, 1.0, "unsure"),  # n^1.0 by one half, n^1.4 by the other
        ({1024: [1, 1], 4096: [4, 4], 16384: [16, 16]}, 1.2, "fails"),  # memory
        ({1024: [9, 9], 4096: [4, 4], 16384: [16, 16]}, 1.2, "fails"),
    ],
)
def test_a_verdict_needs_times_that_agree(times: dict[int, list[float]], memory: float, verdict: str) -> None:
    assert scaling_of(times, memory).linear == verdict


def test_each_round_visits_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []
    monkeypatch.setattr(scaling_module, "program_of", lambda _, setting: lambda: order.append(setting.length))
    results = scaling(made("attention", "linear"), [16, 32, 64], rounds=2)
    assert order[:12] == [16, 32, 64] * 4  # with two rounds to warm up
    assert [len(times) for times in results.rounds.values()] == [2, 2, 2]


def test_memory_of_written_out_softmax_grows_with_the_square_and_linear_attention_does_not() -> None:
    quadratic, linear = (
        scaling(made("attention", name), [256, 512], rounds=1) for name in ("softmax_explicit", "linear")
    )
    assert 1.6 < quadratic.memory_exponent < 2.1
    assert linear.memory_exponent == pytest.approx(1, abs=0.15)  # d x d sums matter at short lengths


@pytest.mark.parametrize(
    ("complexity", "linear"),
    [
        ("time O(n k d), memory O(n²)", True),
        ("time O(n²d), memory O(n)", False),
        ("time O(n√n d), memory O(n√n)", False),
        ("time O(n log n d), memory O(n)", False),
        ("time O(n √n d), memory O(n)", False),
        ("time O(n d log(n d)), memory O(n)", False),
        ("time O(n d_p d), memory O(n d); O(n²) time with optimize_n=false", True),
        ("", False),
    ],
)
def test_a_stated_complexity_is_read(complexity: str, linear: bool) -> None:
    assert is_linear(complexity) is linear


def test_the_error_to_softmax_of_its_multiple() -> None:
    assert error_to_softmax(partial(Scaled, factor=1.0), 32) == pytest.approx(0, abs=1e-5)
    assert error_to_softmax(partial(Scaled, factor=1.5), 32) == pytest.approx(0.5, abs=1e-4)


def test_no_error_where_softmax_is_not_the_aim() -> None:
    assert error_to_softmax(made("attention", "luna"), 32) is None


@pytest.mark.parametrize("name", mechanisms())
def test_whoever_approximates_softmax_has_its_four_maps(name: str) -> None:
    error = error_to_softmax(made("attention", name), 64)
    assert error is None or 0 < error < 3


def report(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "check_attention.py"), *overrides]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_report_of_a_class_with_faults(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """
import torch
from subquad.attention.base import StatelessAttention
from subquad.specs import Pattern

class Mine(StatelessAttention):
    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n d), memory O(n)"

    def attend(self, x, context, masks):
        return (x @ context.mT) @ context
"""
    )
    done = report(tmp_path, "attention=mine:Mine", "lengths=[256,512,1024]")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fails  padding is invisible" in done.stdout
    assert "Remedy: leave padded tokens of the context out of every sum" in " ".join(done.stdout.split())
    assert "holds  rows are independent" in done.stdout
    assert "not an approximation of softmax" in done.stdout
    assert "memory as n^1." in done.stdout


def test_every_remedy_is_of_a_test_of_the_contract() -> None:
    text = "".join((TESTS / path).read_text() for path in CONTRACTS)
    assert [name for name in REMEDIES if f"def {name}(" not in text] == []


def test_wrong_overrides_are_explained() -> None:
    unknown = answer("scripts/check_attention.py", "attention=dbaa")
    assert unknown.returncode == 1
    assert "did you mean dba" in unknown.stderr
    key = answer("scripts/check_attention.py", "length=[1]")
    assert 'There is no setting "length"; did you mean lengths?' in key.stderr


@pytest.mark.parametrize(("name", "linear"), [("dba", True), ("dba_full_d", True), ("dba_full_n", False)])
def test_a_key_that_changes_the_growth_changes_what_is_stated(name: str, linear: bool) -> None:
    assert is_linear(stated_complexity(load_attention(name))) is linear


@pytest.mark.parametrize(("name", "error"), [("performer", True), ("performer_relu", False), ("linear", False)])
def test_only_estimates_of_softmax_have_an_error(name: str, error: bool) -> None:
    assert (error_to_softmax(load_attention(name), length=32) is not None) is error


def test_the_crossover_lies_where_two_power_laws_meet():
    linear, square = {n: 64.0 * n for n in (16, 32, 128, 256)}, {n: float(n * n) for n in (16, 32, 128, 256)}
    assert crossover(linear, square) == pytest.approx(64)
    assert crossover(square, linear) is None
    assert crossover(square, {n: 2 * cost for n, cost in square.items()}) == 16
    bumpy = {16: 1.0, 32: 99.0, 128: 1.0, 256: 1.0}
    assert 32 < crossover(bumpy, dict.fromkeys(bumpy, 2.0)) < 128  # below at first, above, below for good
