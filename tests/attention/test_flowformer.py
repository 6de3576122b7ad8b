"""Flowformer against the explicit matrix of flows."""

from functools import partial

import pytest
import torch
from reference import flowformer as reference
from torch import Tensor
from torch.testing import assert_close

from attention.cells import HEADS, prefix
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.flowformer import Flowformer
from subquad.specs import Masks, Pattern

layer = partial(reference.layer, heads=HEADS)
MASKS = Masks(prefix([20, 7], 20), prefix([LONGEST, 24], LONGEST))


def features() -> tuple[Tensor, Tensor]:
    """φ(Q) of 20 and 7 tokens and φ(K) of 37 and 24, padding set to 0."""
    q, k = tokens(2, 20, HEADS, 6).sigmoid(), tokens(2, LONGEST, HEADS, 6).sigmoid()
    return q * MASKS.query[..., None, None], k * MASKS.context[..., None, None]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pattern", Pattern)
def test_equals_the_printed_form(pattern: Pattern, lengths: str) -> None:
    agree(stack(Flowformer, pattern), layer, lengths)


def test_epsilon_is_added_to_both_flows() -> None:
    agree(stack(partial(Flowformer, eps=0.1), Pattern.CROSS), partial(layer, eps=0.1), "padded")


def test_conserved_flows_sum_to_the_numbers_of_tokens() -> None:
    """Σ_i Î_i = m and Σ_j Ô_j = n, both read off the gate and the competition of the layer."""
    q, k = features()
    gate, competition = one(partial(Flowformer, eps=1e-14), Pattern.CROSS)._flows(q, k, MASKS)
    incoming = (q * k.sum(1, keepdim=True)).sum(-1, keepdim=True)
    n, m = (mask.sum(1)[:, None].double() for mask in (MASKS.query, MASKS.context))
    for row in range(2):
        conserved_in = (gate * incoming)[row, : int(n[row])].logit() * m[row] / n[row]
        assert_close(conserved_in.sum(0).flatten(), m[row].expand(HEADS))
    # Of Ô the softmax keeps the differences: its mean over the keys is n/m by the identity.
    for row in range(2):
        share = competition[row, : int(m[row])].squeeze(-1).log()
        printed = torch.stack(
            [
                reference.flows(q[row, : int(n[row]), h].logit(), k[row, : int(m[row]), h].logit(), 0.0)[2]
                for h in range(HEADS)
            ],
            1,
        )
        assert_close(printed.sum(0), n[row].expand(HEADS))
        assert_close(share - share.mean(0), printed - n[row] / m[row])


def test_competition_sums_to_the_number_of_keys() -> None:
    _, competition = one(Flowformer, Pattern.CROSS)._flows(*features(), MASKS)
    assert_close(competition.sum(1).squeeze(-1), MASKS.context.sum(1)[:, None].double().expand(-1, HEADS))
    assert competition[1, 24:].eq(0).all()


def test_equal_keys_give_the_mean_value_through_the_gate() -> None:
    """Equal keys send equal flows: no competition, weights 1/m, and a gate of sigmoid(1)."""
    attention, x = one(partial(Flowformer, eps=0.0)), tokens(2, LONGEST, 24)
    attention.projections.key.weight.data.zero_()
    attention.projections.query.weight.data.zero_()
    mean = attention.projections.value(x).mean(1, keepdim=True)
    gate = torch.tensor(1.0, dtype=torch.float64).sigmoid()
    assert_close(attention(x, x, Masks())[0], attention.projections.out(gate * mean).expand_as(x))
