"""Labels and the fitting of hashes against matrices written out; and that fitting improves the objective."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from attention.cells import prefix
from subquad.attention.ecoformer import naive_fit, naive_labels, naive_objective
from subquad.measure.memory import LiveTensors
from subquad.ops import hash_fitting
from subquad.ops.hash_fitting import both_ways, fit_planes, kulis_grauman, labels, objective
from subquad.ops.hashing import anchor_similarity

HEADS, ROWS = 2, 3


def clustered(tokens: int, width: int = 8, clusters: int = 6, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Unit vectors in few directions, [heads, rows, tokens, width]."""
    centres = torch.randn(clusters, width, dtype=dtype)
    chosen = centres[torch.randint(clusters, (HEADS, ROWS, tokens))]
    return F.normalize(chosen + torch.randn_like(chosen) / 2, dim=-1)


def problem(tokens=19, bits=4, anchors=5, lengths=None, count=3, **kind):
    """Centred similarities, labels, mask and a random start."""
    q = clustered(tokens, **kind)
    mask = prefix(lengths or [tokens] * ROWS, tokens)
    similarity, _ = anchor_similarity(q.permute(1, 2, 0, 3).contiguous(), q[:, 0, :anchors], mask)
    real = mask.to(q.dtype)[..., None]
    mean = ((similarity * real).sum(2) / real.sum(1)).mean(1)
    kappa = ((similarity - mean[:, None, None]) * real).permute(0, 3, 1, 2)
    return kappa, labels(q, mask, count), mask, torch.randn(HEADS, bits, anchors, dtype=q.dtype)


def codes_of(kappa, planes, mask):
    z = torch.einsum("hmbn,hkm->hkbn", kappa, planes)
    return torch.where(z >= 0, 1.0, -1.0).to(z.dtype) * mask


@pytest.mark.parametrize(("tokens", "lengths"), [(19, [19, 13, 5]), (152, [152, 90, 7])], ids=["few", "in groups"])
@pytest.mark.parametrize("block", [1, 7, 2**21])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_labels_are_the_nearest_and_the_farthest(monkeypatch, block: int, count: int, tokens: int, lengths) -> None:
    monkeypatch.setattr(hash_fitting, "_BLOCK", block * HEADS * ROWS * tokens)
    monkeypatch.setattr(hash_fitting, "_GROUP", 3 if tokens == 152 else 16)
    q = clustered(tokens)
    result = labels(q, prefix(lengths, tokens), count).dense()
    for head in range(HEADS):
        for row, n in enumerate(lengths):
            want = torch.zeros(tokens, tokens, dtype=q.dtype)
            want[:n, :n] = naive_labels(q[head, row, :n], count)
            assert_close(result[head, row], want)


def test_a_row_has_as_many_labels_of_each_sign_and_a_token_is_like_itself() -> None:
    result = labels(clustered(40), prefix([40, 40, 20], 40), 10).dense()
    for row, n in enumerate([40, 40, 20]):
        assert ((result[:, row, :n] == 1).sum(-1) == 10).all()
        assert ((result[:, row, :n] == -1).sum(-1) == 10).all()
        assert (result[:, row].diagonal(dim1=1, dim2=2)[:, :n] == 1).all()
    assert not torch.equal(result, result.mT)


def test_where_labels_meet_the_farthest_stand() -> None:
    """Seven tokens with four labels of each sign; and tokens that are all alike."""
    for q in (clustered(7), torch.ones(HEADS, ROWS, 7, 4, dtype=torch.float64) / 2):
        result = labels(q, prefix([7] * ROWS, 7), 4).dense()
        assert ((result == -1).sum(-1) == 4).all()
        assert (result.diagonal(dim1=2, dim2=3) == 1).all()
        assert set(result.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert (labels(clustered(7), prefix([7, 2, 1], 7), 4).dense()[:, 2] == 0).all()


def test_sparse_labels_act_as_the_matrix() -> None:
    _, graph, _, _ = problem(lengths=[19, 11, 4])
    y = torch.randn(HEADS, ROWS, 19, 1, dtype=torch.float64)
    dense = graph.dense()
    assert_close(both_ways(graph, 3.0).mv(y.flatten()).view_as(y), 3 * (dense + dense.mT) @ y)


def test_the_objective_is_the_distance_of_matrices() -> None:
    kappa, graph, mask, planes = problem(lengths=[19, 11, 4])
    codes = codes_of(kappa, planes, mask)
    want = sum(naive_objective(codes[h, :, row].T, graph.dense()[h, row]) for h in range(HEADS) for row in range(ROWS))
    assert_close(objective(codes, graph), want)


def test_the_released_rule_equals_residuals_written_out() -> None:
    """The loss is averaged over heads, and each head is fitted separately."""
    kappa, graph, mask, planes = problem()
    planes = planes / 10
    result = fit_planes(kappa, graph, mask, planes, "released")
    for head in range(HEADS):
        rows = kappa[head].permute(1, 2, 0)
        want = naive_fit(rows, graph.dense()[head], planes[head], heads=HEADS)
        assert_close(result[head], want)
    assert 1e-4 < (result - planes).norm() / planes.norm() < 0.5


@pytest.mark.parametrize("rule", ["released", "strong"])
def test_no_bit_is_worse_than_the_one_it_replaces(rule: str) -> None:
    kappa, graph, mask, planes = problem(tokens=60, lengths=[60, 41, 30])
    result = fit_planes(kappa, graph, mask, planes, rule)
    weight = 1 / mask.double().sum(1, keepdim=True)
    residual = planes.shape[1] * graph.dense()
    lower = 0
    for new, old in zip(codes_of(kappa, result, mask).unbind(1), codes_of(kappa, planes, mask).unbind(1), strict=True):
        now, before = (torch.einsum("hbn,hbnm,hbm,bo->h", y, residual, y, weight) for y in (new, old))
        assert (now >= before - 1e-9).all()
        lower += (now > before + 1e-9).sum()
        residual = residual - new[..., None] * new[..., None, :]
    assert lower > (0 if rule == "released" else planes.shape[0] * planes.shape[1] - 2)


def test_a_row_that_gets_worse_is_not_taken(monkeypatch) -> None:
    kappa, graph, mask, planes = problem()
    monkeypatch.setattr(hash_fitting, "_descend", lambda a, *_, **__: torch.zeros_like(a))
    result = fit_planes(kappa, graph, mask, planes, "released")
    y = torch.ones(HEADS, ROWS, 19, dtype=torch.float64)  # the code of a = 0
    residual = planes.shape[1] * graph.dense()
    old = codes_of(kappa, planes[:, :1], mask)[:, 0]
    gains = [torch.einsum("hbn,hbnm,hbm->h", c, residual, c) for c in (y, old)]
    assert ((result[:, 0] == 0).all(-1) == (gains[0] > gains[1])).all()


def test_the_strong_rule_fits_clusters_far_better_than_the_released_one() -> None:
    kappa, graph, mask, planes = problem(tokens=300, bits=16, anchors=25, count=10, width=32, clusters=20)
    error = {"random": objective(codes_of(kappa, planes, mask), graph)}
    for rule in ("released", "strong"):
        error[rule] = objective(codes_of(kappa, fit_planes(kappa, graph, mask, planes, rule), mask), graph)
    assert error["released"] < error["random"]
    assert error["strong"] < 0.8 * error["released"]


def test_the_strong_rule_leaves_half_of_the_slopes_open() -> None:
    kappa, graph, mask, planes = problem(tokens=60, lengths=[60, 41, 30])
    result = fit_planes(kappa, graph, mask, planes, "strong")
    z = torch.einsum("hmbn,hkm->hkbn", kappa, result)
    assert_close(z.square().sum((2, 3)) / mask.sum(), torch.ones(result.shape[:2], dtype=z.dtype))


def test_hyperplanes_of_kernelised_lsh_are_random_directions_in_the_space_of_the_kernel() -> None:
    """aᵀ K a with the centred K is the same for all; with one of m anchors chosen it is (m - 1) / m."""
    anchors = F.normalize(torch.randn(HEADS, 4, 8, dtype=torch.float64), dim=-1)
    sigma = torch.tensor([1.3, 0.7], dtype=torch.float64)
    planes = kulis_grauman(anchors, sigma, 5)
    centre = torch.eye(4, dtype=torch.float64) - 0.25
    distance = (anchors[:, :, None] - anchors[:, None]).square().sum(-1)
    gram = centre @ (-distance / (2 * sigma[:, None, None])).exp() @ centre
    assert_close((planes @ gram * planes).sum(-1), torch.full((HEADS, 5), 0.75, dtype=torch.float64))
    assert_close(planes.sum(-1), torch.zeros(HEADS, 5, dtype=torch.float64))
    assert len(planes.round(decimals=6).flatten(0, 1).unique(dim=0)) > 4


def test_memory_grows_with_tokens_not_with_their_square() -> None:
    kappa, _, mask, planes = problem(tokens=1500, bits=8, anchors=5, count=3)
    q = clustered(1500)
    with LiveTensors() as memory:
        fit_planes(kappa, labels(q, mask, 3), mask, planes, "strong")
    assert memory.peak < 0.6 * HEADS * ROWS * 1500 * 1500 * 8
