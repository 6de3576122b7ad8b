"""The released layer of DBA against its formulas."""

from functools import partial

import pytest
import torch
from reference import dba_released as reference
from torch.testing import assert_close

from attention.cells import HEADS, run, site
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention import dba_released
from subquad.attention.dba_released import DBAReleased
from subquad.ops import latent_attention
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError

small = partial(DBAReleased, d_p=5, d_in=12)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_equals_the_written_form(lengths: str) -> None:
    layers = stack(small, Pattern.SELF, layers=3)
    agree(layers, lambda module, x, _, carry: reference.layer(module, x, carry, heads=HEADS), lengths)


def test_d_in_is_rounded_up_to_a_multiple_of_the_heads() -> None:
    layers = stack(partial(DBAReleased, d_p=5, d_in=10), Pattern.SELF)
    agree(layers, lambda module, x, _, carry: reference.layer(module, x, carry, heads=HEADS), "padded")
    assert layers[0].key.out_features == 12


@pytest.mark.parametrize("lengths", ["37", "padded"])
def test_dropout_acts_on_z_and_on_three_weights(lengths: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaced by squaring, dropout shows where it acts, and that the bias of values is weighted by the sums."""
    for module in (dba_released, latent_attention):
        monkeypatch.setattr(module, "dropout", lambda t, p, training: t.square() if training and p == 0.5 else t)

    def layer(module, x, _, carry):
        return reference.layer(module, x, carry, heads=HEADS, drop=torch.square)

    agree(stack(small, Pattern.SELF, layers=2, dropout=0.5), layer, lengths)


def test_equal_tokens_are_one_token() -> None:
    """Weights sum to 1, so any number of tokens equal to c gives C = c A_v and Y = LayerNorm(C B_v) W_O."""
    m, c = one(small), tokens(2, 1, 24)
    same = c.expand(-1, 30, -1)
    y, rows = m(same, same, Masks())
    assert_close(rows, m.value(c).expand(-1, 5, -1))
    assert_close(y, m.out(m.norm(m.row_value(m.value(c)))).expand(-1, 30, -1))


def test_tokens_may_be_permuted() -> None:
    layers, order, x = stack(small, Pattern.SELF), torch.randperm(LONGEST), tokens(2, LONGEST, 24)
    moved = x[:, order]
    assert_close(run(layers, moved, moved), run(layers, x, x)[:, order])


def test_z_starts_with_variance_1_over_d_in_the_first_layer_alone() -> None:
    first, second = stack(DBAReleased, Pattern.SELF, dim=1024)
    assert first.latent.var().item() == pytest.approx(1 / 1024, rel=0.05)
    assert second.latent is None


def test_rows_must_come_from_the_first_layer() -> None:
    x = torch.zeros(1, 13, 24)
    with pytest.raises(UserError, match="DBA in layer 1 needs Z of the layer before it"):
        small(site(Pattern.SELF, layer=1, layers=2))(x, x, Masks())
