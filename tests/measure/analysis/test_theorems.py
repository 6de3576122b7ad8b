"""The statements of the papers: findings are recomputed, or bounded by theory."""

import math
import pkgutil
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.svm import SVR

import subquad.measure.analysis.theorems
from subquad.measure.analysis.theorems import (
    hamming,
    johnson_lindenstrauss,
    lossless_compression,
    low_rank,
    support_vectors,
)
from subquad.measure.analysis.theorems.finding import check_all


@cache
def findings():
    return tuple(check_all())


def result_of(paper, place, statement=""):
    [finding] = [f for f in findings() if f.paper == paper and f.place == place and statement in f.statement]
    return finding


@pytest.mark.slow
def test_every_topic_is_checked():
    topics = {module.name for module in pkgutil.iter_modules(subquad.measure.analysis.theorems.__path__)} - {"finding"}
    assert topics == {"hamming", "johnson_lindenstrauss", "lossless_compression", "low_rank", "support_vectors"}
    assert check_all("hamming") == [f for f in findings() if f.paper == "EcoFormer"]
    assert check_all("no such topic") == []
    assert {f.paper for f in findings()} == {"DBA", "Linformer", "Primal-Dual", "EcoFormer"}


@pytest.mark.slow
def test_what_fails_is_explained_and_all_numbers_are_numbers():
    for finding in findings():
        assert finding.verdict == "holds" or finding.note
        assert finding.measured
        assert all(math.isfinite(value) for value in finding.measured.values())


def test_printed_variance_shrinks_inner_products():
    finding = result_of("DBA", "Eq. 15", "estimates")
    printed, mended, ratio = finding.measured.values()
    assert printed == pytest.approx(24 / 64, rel=0.03)
    assert mended == pytest.approx(1, rel=0.03)
    assert ratio == 24 / 64


def test_multiplicative_lemma_fails_for_nearly_orthogonal_vectors():
    failing, additive = result_of("DBA", "Eq. 15", "but for a share"), result_of("DBA", "Eq. 15", "in place of")
    assert failing.measured["allowed"] == pytest.approx(2 * math.exp(-(0.25 - 0.125) * 32))
    assert failing.measured["failures"] > 20 * failing.measured["allowed"]
    assert max(additive.measured["failures"], additive.measured["failures, y = x"]) <= additive.measured["allowed"]


def test_inner_products_have_the_variance_of_theory():
    # Var[x R Rᵀ y] = (‖x‖²‖y‖² + (x y)²) / d_in for entries of N(0, 1/d_in).
    x, y = johnson_lindenstrauss.pair(0.6, 32)
    assert float(x @ y) == pytest.approx(0.6)
    drawn = johnson_lindenstrauss.inner_products(x, y, 16, 1 / 16, draws=20000)
    assert float(drawn.mean()) == pytest.approx(0.6, abs=0.01)
    assert float(drawn.var()) == pytest.approx((1 + 0.36) / 16, rel=0.05)


def test_no_error_lets_d_in_be_24():
    widths = [johnson_lindenstrauss.least_width(eps, 16) for eps in np.linspace(0.01, 0.99, 99)]
    assert min(widths) > 187 - 1
    assert result_of("DBA", "Eq. 9 and Table 7").measured["least d_in over all ε"] == pytest.approx(
        min(widths), abs=0.1
    )


def test_a_layer_forgets_less_the_wider_r_is():
    errors = johnson_lindenstrauss.layer_errors((8, 32, 128), seeds=4, dim=32, n=16)
    assert errors[8] > 1.5 * errors[32] > 1.5**2 * errors[128] > 0
    slope = result_of("DBA", "Section 3.2").measured["error ~ d_in^p, p"]
    assert slope == pytest.approx(-0.5, abs=0.15)


def test_softmax_raises_the_rank_and_dba_keeps_it():
    logits, attention = lossless_compression.softmax_ranks(n=20, d=3)
    assert logits == 3
    assert attention > 10
    assert [lossless_compression.layer_rank(n=16, d_p=p) for p in (1, 4)] == [1, 4]


def test_least_rank_is_that_of_the_truncated_spectrum():
    u, _ = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))
    matrix = u @ torch.diag(torch.tensor([4.0, 3, 0.5, 0.2, 0.1, 0], dtype=torch.float64)) @ u.mT
    for eps in (0.5, 0.2, 0.05, 0.02):
        k = low_rank.least_rank(matrix, eps)
        left, values, right = torch.linalg.svd(matrix)
        cut = [float((left[:, :r] * values[:r] @ right[:r] - matrix).norm() / matrix.norm()) for r in range(7)]
        assert cut[k] <= eps < cut[k - 1]


def test_linformers_theorem_at_the_constants_of_its_proof():
    assert low_rank.projected_rank(512) == math.ceil(5 * math.log(512) / 0.125)
    theorem = result_of("Linformer", "Theorem 1", "for any w")
    assert theorem.measured["median error, random w"] > 2 * theorem.measured["ε"]
    assert theorem.measured["share of draws within ε"] == 0
    assert result_of("Linformer", "Theorem 1", "w = 1").measured["share of draws within ε"] == 1
    ranks = result_of("Linformer", "Theorem 1", "rank").measured
    assert ranks["rank ~ n^p, p"] > 0.5
    # Sharp attention over 512 tokens needs several times the rank of flat attention.
    assert ranks["rank for 0.1, n=512"] > 3 * ranks["rank for 0.1, flat P, n=512"]


def test_the_step_of_theorem_2_does_not_vanish():
    # For δ -> 0 the ratio tends to ‖1 - 1 R‖ / √n, with expectation of the square (k + n) / n.
    ratios = [low_rank.lipschitz_step(n, k=64) for n in (64, 512)]
    assert ratios[0] == pytest.approx(math.sqrt(2), rel=0.25)
    assert ratios[1] == pytest.approx(math.sqrt(1 + 64 / 512), rel=0.25)


def test_taylor_features_have_the_inner_products_of_the_exponential():
    x, k = torch.randn(2, 4, 3, dtype=torch.float64)
    products = support_vectors.taylor_features(x, 16) @ support_vectors.taylor_features(k, 16).mT
    torch.testing.assert_close(products, (x @ k.mT / math.sqrt(3)).exp(), rtol=1e-6, atol=1e-8)
    assert support_vectors.taylor_features(x, 2).shape == (4, math.comb(5, 2))


def test_the_primal_layer_is_softmax_attention():
    x, keys, values = (torch.randn(5, 2, dtype=torch.float64) for _ in range(3))
    exact = torch.nn.functional.scaled_dot_product_attention(x, keys, values)
    torch.testing.assert_close(support_vectors.primal(x, keys, values), exact, rtol=1e-8, atol=1e-9)


def test_the_solver_solves_support_vector_regressions():
    # scikit-learn's regression has a bias; predictions agree if the kernel is centred in the span of the solution.
    dice = np.random.default_rng(0)
    x = np.concatenate([a := dice.normal(size=(6, 2)), -a])
    kernel = x @ x.T + np.eye(12)
    targets = np.concatenate([t := dice.normal(size=6), -t])  # odd: the best bias is 0
    original = SVR(kernel="precomputed", C=0.4, epsilon=0.1, tol=1e-9).fit(kernel, targets)
    wanted = np.zeros(12)
    wanted[original.support_] = original.dual_coef_[0]
    assert abs(original.intercept_[0]) < 1e-6
    ours = support_vectors.solve(kernel, targets, np.full(12, 0.1), np.full(12, 0.4))
    np.testing.assert_allclose(ours, wanted, atol=1e-5)
    assert np.isclose(np.abs(ours).max(), 0.4)


def test_the_regression_gives_the_values_only_without_its_bound():
    assert support_vectors.recovered_values(10.0) < 1e-6
    assert support_vectors.recovered_values(0.5) > 0.1


def test_recentring_and_scaled_heads():
    assert max(support_vectors.bn_forms().values()) < 1e-12
    assert support_vectors.full_bn_error() < 1e-12
    assert max(support_vectors.scaled_heads().values()) < 1e-12
    assert support_vectors.linear_bn_change() > 1e-3


def test_hamming_distances_and_inner_products():
    a, b = torch.tensor([[1.0, 1, -1, 1]]), torch.tensor([[1.0, -1, 1, 1]])
    assert (a @ b.mT).item() == 4 - 2 * 2
    assert hamming.affinity_error() == 0
    assert [hamming.least_weight(bits) for bits in (1, 3, 4, 7, 8, 16)] == [1, 1, 4, 1, 8, 16]
    assert hamming.association_error() < 1e-12
    left, mended, printed = hamming.objective_constants()
    assert left == pytest.approx(mended)
    assert abs(left - printed) > 100
