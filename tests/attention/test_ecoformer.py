"""EcoFormer against weights written out, its properties and its state; test_ecoformer_fitting tests the fitting."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from attention.cells import HEADS, prefix
from attention.checks import LENGTHS, agree, one, stack, tokens
from subquad.attention.ecoformer import EcoFormer, naive_codes, naive_ecoformer, naive_kernel
from subquad.ops.hashing import power_bias, sign
from subquad.specs import Masks, Pattern


def layer(attention, x, context, carry, read_out="paper"):
    """The naive layer."""
    buffers = zip(attention.anchors, attention.mean, attention.planes, strict=True)
    q, v = attention.shared(x).chunk(HEADS, 1), attention.value(x).chunk(HEADS, 1)
    parts = [naive_ecoformer(naive_codes(a, *own), b, read_out) for a, b, own in zip(q, v, buffers, strict=True)]
    return attention.out(torch.cat(parts, 1)), carry


small = partial(EcoFormer, bits=6, anchors=5, neighbours=2)
exactly = {"rtol": 0, "atol": 0}


def unit_anchors(layers):
    """Anchors drawn in single precision are unit vectors up to its rounding."""
    for attention in layers:
        attention.anchors.copy_(F.normalize(attention.anchors, dim=-1))
    return layers


def fitted(factory=small, rows=4, **changes):
    attention = one(factory, **changes)
    x = tokens(rows, 37, attention.site.dim)
    attention.refresh(x, x, Masks())
    return attention


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("read_out", ["paper", "released"])
@pytest.mark.parametrize("dim", [24, 32], ids=["wide", "narrow"])
def test_equals_the_printed_form(lengths: str, read_out: str, dim: int) -> None:
    layers = stack(partial(small, read_out=read_out), Pattern.SELF, dim=dim)
    x = tokens(4, 37, dim)
    layers[0].refresh(x, x, Masks())  # the other stays as it is before fitting
    agree(unit_anchors(layers), partial(layer, read_out=read_out), lengths)


def test_equals_the_printed_form_at_the_published_sizes() -> None:
    agree(unit_anchors(stack(EcoFormer, Pattern.SELF, dim=80)), layer, "padded")


def weights_of(attention, x):
    """The weight of each value in one head: the output for values that are one-hot in the token."""
    n = x.shape[1]
    with torch.no_grad():
        attention.value.weight.zero_()
        attention.value.bias.zero_()
        attention.out.weight.copy_(torch.eye(len(attention.out.weight)))
        attention.out.bias.zero_()
        attention.value.weight[0, -1] = 1  # the first value reads a feature that only token i has
        columns = []
        for i in range(n):
            marked = x.clone()
            marked[..., -1] = 0
            marked[:, i, -1] = 1
            columns.append(attention(marked, marked, Masks())[0][..., 0])
    return torch.stack(columns, -1)


def blind(attention):
    """Queries that do not see the last feature, so that it can mark a token."""
    with torch.no_grad():
        attention.shared.weight[:, -1] = 0
    return attention


@pytest.mark.parametrize("state", ["random", "fitted"])
def test_weights_are_positive_sum_to_one_and_differ_at_most_threefold(state: str) -> None:
    attention = blind(one(EcoFormer, dim=32, heads=1) if state == "random" else fitted(EcoFormer, dim=32, heads=1))
    weights = weights_of(attention, tokens(2, 13, 32))
    assert weights.min() > 0
    assert_close(weights.sum(-1), torch.ones(2, 13, dtype=torch.float64))
    ratio = weights.amax(-1) / weights.amin(-1)
    assert 1.1 < ratio.max() <= 3 + 1e-9


def test_equal_values_give_that_value_and_the_released_read_out_does_not() -> None:
    x = tokens(2, 37, 24)
    outputs = {}
    for read_out in ("paper", "released"):
        torch.manual_seed(0)
        attention = one(partial(small, read_out=read_out))
        with torch.no_grad():
            attention.value.weight.zero_()
            attention.value.bias.fill_(1)
            attention.out.weight.copy_(torch.eye(24))
            attention.out.bias.zero_()
        outputs[read_out] = attention(x, x, Masks())[0]
    assert_close(outputs["paper"], torch.ones_like(x))
    assert outputs["released"].max() < 0.95


def test_the_released_read_out_adds_the_own_value() -> None:
    """If codes do not vary, the paper gives the mean of values; the code N b v̄ + (b + 1) v_t over N (2 b + 1)."""
    x = tokens(1, 37, 24)
    for read_out in ("paper", "released"):
        attention = one(partial(small, read_out=read_out))
        attention.planes.zero_()
        with torch.no_grad():
            attention.out.weight.copy_(torch.eye(24))
            attention.out.bias.zero_()
            v, y = attention.value(x), attention(x, x, Masks())[0]
        mean = v.mean(1, keepdim=True)
        assert_close(y, mean.expand_as(v) if read_out == "paper" else (37 * 6 * mean + 7 * v) / (37 * 13))


def test_the_bias_is_the_least_power_of_two_above_the_bits() -> None:
    assert [power_bias(bits) for bits in (1, 2, 3, 4, 7, 8, 15, 16)] == [2, 4, 4, 8, 8, 16, 16, 32]


def test_sign_of_zero_is_one_and_the_slope_is_that_of_the_hard_tanh() -> None:
    z = torch.tensor([-2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0], requires_grad=True)
    h = sign(z)
    assert h.tolist() == [-1, -1, -1, 1, 1, 1, 1, 1]
    [slope] = torch.autograd.grad(h, z, torch.full_like(z, 3.0))
    assert slope.tolist() == [0, 0, 3, 3, 3, 3, 0, 0]


@pytest.mark.parametrize("fit", ["released", "strong", "klsh"])
def test_vectors_of_zero_give_no_nan(fit: str) -> None:
    attention = one(partial(small, fit=fit))
    with torch.no_grad():
        attention.shared.bias.zero_()
    x = tokens(2, 13, 24)
    x[:, 3:7] = 0
    for rows in (x, torch.zeros_like(x)):
        for _ in range(2):
            rows = rows.detach().requires_grad_()
            y = attention(rows, rows, Masks())[0]
            [gradient] = torch.autograd.grad(y.square().sum(), rows)
            assert y.isfinite().all()
            assert gradient.isfinite().all()
            attention.refresh(rows.detach(), rows.detach(), Masks())
            assert all(buffer.isfinite().all() for buffer in attention.buffers())


def test_when_it_is_due() -> None:
    attention = one(partial(small, refit_epochs=3, fit_batch=2))

    def due():
        return [(epoch, batch) for epoch in range(8) for batch in range(4) if attention.due(epoch, batch, 99)]

    assert due() == [(epoch, 2) for epoch in range(8)]
    attention.fitted.fill_(True)
    assert due() == [(0, 2), (3, 2), (6, 2)]
    attention.refit_epochs = None
    assert due() == []


def test_refresh_changes_all_buffers_and_nothing_else() -> None:
    attention = one(partial(small, fit="strong"))
    before, x = copy.deepcopy(attention.state_dict()), tokens(4, 37, 24)
    attention.refresh(x, x, Masks())
    changed = {name for name, value in attention.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"anchors", "mean", "planes", "fitted"}
    assert all(p.grad is None for p in attention.parameters())


def test_a_state_dict_restores_a_fitted_layer_exactly() -> None:
    attention, fresh, x = fitted(), one(small), tokens(3, 13, 24)
    assert not torch.equal(attention(x, x, Masks())[0], fresh(x, x, Masks())[0])
    fresh.load_state_dict(attention.state_dict())
    assert_close(fresh(x, x, Masks())[0], attention(x, x, Masks())[0], **exactly)
    assert not fresh.due(1, 0, 5)


def refreshed(x, masks, seed=3, **choices):
    torch.manual_seed(seed)
    attention = one(partial(small, **choices))
    with torch.no_grad():
        attention.shared.weight.copy_(torch.eye(24))
        attention.shared.bias.zero_()
    torch.manual_seed(seed)
    attention.refresh(x, x, masks)
    return attention


@pytest.mark.parametrize("fit", ["released", "strong", "klsh"])
@pytest.mark.parametrize("anchors_from", ["first", "all"])
def test_padding_and_rows_of_padding_do_not_enter_the_fit(fit: str, anchors_from: str) -> None:
    x = tokens(4, 13, 24)
    mask = prefix([9, 0, 9, 9], 13)
    x = torch.where(mask[..., None], x, 1e3)
    padded = refreshed(x, Masks(mask, mask), fit=fit, anchors_from=anchors_from)
    trimmed = refreshed(x[mask.any(1), :9], Masks(), fit=fit, anchors_from=anchors_from)
    assert_close(dict(padded.state_dict()), dict(trimmed.state_dict()), rtol=1e-6, atol=1e-6)
    untouched = refreshed(x, Masks(None, torch.zeros_like(mask)), fit=fit)
    assert not untouched.fitted


def test_anchors_are_real_tokens_of_the_first_row_or_of_all_and_the_same_in_all_heads() -> None:
    x = tokens(3, 13, 24)
    heads = F.normalize(x.unflatten(-1, (4, 6)), dim=-1)
    for anchors_from, rows in (("first", {0}), ("all", {0, 1, 2})):
        attention = refreshed(x, Masks(), anchors_from=anchors_from, anchors=30)
        where = [
            [(heads[:, :, h] - anchor).norm(dim=-1).flatten().argmin().item() for anchor in attention.anchors[h]]
            for h in range(4)
        ]
        assert all(of_head == where[0] for of_head in where)
        assert {token // 13 for token in where[0]} == rows
        repeated = 30 - len(set(where[0]))
        assert repeated == (17 if anchors_from == "first" else 0)
        nearest = torch.stack([heads[:, :, h].flatten(0, 1)[where[h]] for h in range(4)])
        assert_close(attention.anchors, nearest)


def test_the_centre_is_the_mean_similarity_of_each_anchor() -> None:
    x, mask = tokens(2, 13, 24), prefix([13, 6], 13)
    attention = refreshed(x, Masks(mask, mask))
    for head in range(4):
        rows = [F.normalize(row[:n, 6 * head : 6 * head + 6]) for row, n in zip(x, (13, 6), strict=True)]
        means = [naive_kernel(row, attention.anchors[head]).mean(0) for row in rows]
        assert_close(attention.mean[head], torch.stack(means).mean(0))


def test_fit_rows_limits_what_is_read() -> None:
    x = tokens(4, 13, 24)
    limited, cut = refreshed(x, Masks(), fit_rows=2), refreshed(x[:2], Masks())
    assert_close(dict(limited.state_dict()), dict(cut.state_dict()), **exactly)


@pytest.mark.parametrize("fit", ["released", "strong", "klsh"])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_very_short_rows_can_be_fitted(fit: str, length: int) -> None:
    x = tokens(2, length, 24)
    attention = refreshed(x, Masks(), fit=fit)
    assert attention.fitted
    assert attention(x, x, Masks())[0].isfinite().all()


@pytest.mark.parametrize("low", [False, True], ids=["autocast", "bf16"])
def test_low_precision_is_fitted_in_single(low: bool) -> None:
    x = tokens(2, 37, 24).float()
    attention = one(small).float()
    if low:
        attention, x = attention.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=not low):
        attention.refresh(x, x, Masks())
        y = attention(x, x, Masks())[0]
    assert y.isfinite().all()


def test_gradients_reach_queries_through_codes_and_sigma() -> None:
    """With values that do not depend on x, all that is left is the surrogate of the codes."""
    attention, x = fitted(), tokens(2, 13, 24)
    y = attention(x, x, Masks())[0]
    got = torch.autograd.grad(y.square().sum(), attention.shared.weight)[0]
    want = torch.zeros_like(got)
    for row in x:
        printed = layer(attention, row, row, None)[0]
        want += torch.autograd.grad(printed.square().sum(), attention.shared.weight)[0]
    assert got.norm() > 1e-3
    assert_close(got, want)


def test_a_stage_with_few_tokens_is_named_once(caplog) -> None:
    stack(EcoFormer, Pattern.SELF, layers=2, context_len=16, stage=2)
    [messages] = [record.message for record in caplog.records]
    assert messages.startswith("EcoFormer in stage 3 has 16 tokens in a row at most: 16 of 25 anchors differ")
    one(EcoFormer, context_len=4)
    assert caplog.records[-1].message.endswith("and a token has 3 of 10 labels of each sign.")
    caplog.clear()
    one(EcoFormer, context_len=25)
    assert not caplog.records
