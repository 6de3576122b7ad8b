"""Limits in which DBA equals a known function."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from attention.cells import run, site
from attention.checks import LONGEST, one, stack, tokens
from subquad.attention.base import Attention
from subquad.attention.dba import DBA
from subquad.attention.softmax import Softmax
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError

small = partial(DBA, d_p=5, d_in=12, recon_norm="none")
both_patterns = pytest.mark.parametrize("pattern", Pattern)


def solve(linear: nn.Linear, x: Tensor, target: Tensor) -> None:
    """Sets a linear map so that it takes the rows of x, fewer than its width, to the target."""
    linear.weight.data = (torch.linalg.pinv(x) @ target).T
    linear.bias.data.zero_()


def picking(rows: Tensor, groups: int) -> Tensor:
    """Z with softmax(Z rowsᵀ) = I in each group of columns: Z = α (rows rowsᵀ)⁻¹ rows."""
    return torch.cat([100 * torch.linalg.pinv(part).T for part in rows.chunk(groups, 1)], 1)


@pytest.mark.parametrize(("heads", "compress_heads"), [(1, "shared"), (4, "shared"), (4, "per_head")])
@both_patterns
def test_identity_compression_is_softmax_attention(pattern: Pattern, heads: int, compress_heads: str) -> None:
    """Five tokens, five slots, and parameters that make every W the identity on this input."""
    groups = heads if compress_heads == "per_head" else 1
    factory = partial(small, compress_heads=compress_heads, optimize_d=False)
    m, exact = one(factory, pattern, heads=heads), one(Softmax, pattern, heads=heads)
    m.key.load_state_dict(m.query.state_dict())
    for name in ("query", "key", "value", "out"):
        getattr(exact.projections, name).load_state_dict(getattr(m, name).state_dict())
    context = tokens(1, 5, 24)
    x = context if pattern is Pattern.SELF else tokens(1, 5, 24)
    identity = torch.eye(5, dtype=torch.float64).repeat(1, groups)
    m.latent.data = picking(m.query(context[0]).detach(), groups)
    solve(m.expand, x[0], identity)
    if pattern is Pattern.SELF:
        solve(m.contract, x[0], identity)
    else:
        solve(m.guide, context[0], picking(m.query(x[0]).detach(), groups))
    assert_close(m(x, context, Masks())[0], exact(x, context, Masks())[0])


@both_patterns
@pytest.mark.parametrize(("heads", "d_in", "d_in_mode"), [(1, 24, "total"), (4, 24, "single_map"), (4, 6, "per_head")])
def test_orthogonal_r_changes_nothing(heads: int, d_in: int, d_in_mode: str, pattern: Pattern) -> None:
    rotated = one(partial(small, d_in=d_in, d_in_mode=d_in_mode), pattern, heads=heads)
    without = one(partial(small, d_in_mode=d_in_mode, optimize_d=False), pattern, heads=heads)
    without.load_state_dict({k: v for k, v in rotated.state_dict().items() if not k.startswith("r_")})
    nn.init.orthogonal_(rotated.r_query.weight)
    context = tokens(2, LONGEST, 24)
    x = context if pattern is Pattern.SELF else tokens(2, 7, 24)
    assert_close(rotated(x, context, Masks())[0], without(x, context, Masks())[0])


def test_tokens_may_be_permuted() -> None:
    layers, order, x = stack(small, Pattern.SELF), torch.randperm(LONGEST), tokens(2, LONGEST, 24)
    moved = x[:, order]
    assert_close(run(layers, moved, moved), run(layers, x, x)[:, order])


def test_context_may_be_permuted() -> None:
    m, order = one(small, Pattern.CROSS), torch.randperm(LONGEST)
    x, context = tokens(2, 7, 24), tokens(2, LONGEST, 24)
    assert_close(m(x, context[:, order], Masks())[0], m(x, context, Masks())[0])


@both_patterns
def test_rank_of_the_mixing_is_at_most_d_p(pattern: Pattern) -> None:
    m, context = one(small, pattern), tokens(1, LONGEST, 24)
    x = context if pattern is Pattern.SELF else tokens(1, 30, 24)
    y, _ = m(x, context, Masks())
    assert torch.linalg.matrix_rank(y[0] - m.out.bias) == 5


def values_of_one(m: Attention) -> Tensor:
    """The rows of W'_r P' W'_cᵀ summed: the output where all values are 1 and there is no W_O."""
    nn.init.zeros_(m.value.weight)
    nn.init.ones_(m.value.bias)
    x = tokens(2, LONGEST, 24)
    return m(x, x, Masks())[0]


@pytest.mark.parametrize("compress_heads", ["shared", "per_head"])
def test_normalised_reconstruction_is_an_average(compress_heads: str) -> None:
    y = values_of_one(one(partial(small, recon_norm="softmax", out_proj=False, compress_heads=compress_heads)))
    assert_close(y, torch.ones_like(y))


def test_printed_reconstruction_is_no_average() -> None:
    y = values_of_one(one(partial(small, out_proj=False)))
    assert (y - 1).abs().max() > 1


@both_patterns
def test_rows_of_the_compression_sum_to_one(pattern: Pattern) -> None:
    """Tokens that are all equal are compressed to themselves, and Z becomes LayerNorm(Z + c)."""
    m, c = stack(partial(small, z_mode="propagate"), pattern)[0], tokens(2, 1, 24)
    same = c.expand(-1, 9, -1)
    _, carry = m(same if pattern is Pattern.SELF else tokens(2, 4, 24), same, Masks())
    assert_close(carry, m.norm(m.latent + c))


def test_inverse_length_counts_real_tokens() -> None:
    """With values of 1, the mean over 9 real tokens equals the mean without padding."""
    m, x, mask = one(partial(small, recon_norm="inv_len")), tokens(1, 20, 24), torch.arange(20)[None] < 9
    assert_close(m(x, x, Masks(mask, mask))[0][:, :9], m(x[:, :9], x[:, :9], Masks())[0])


def test_without_mask_padding_is_read() -> None:
    m, x, mask = one(partial(small, mask="none")), tokens(1, 20, 24), torch.arange(20)[None] < 9
    assert_close(m(x, x, Masks(mask, mask))[0], m(x, x, Masks())[0])


def test_z_of_each_mode() -> None:
    owned = {mode: [layer.latent is not None for layer in stack(partial(small, z_mode=mode), Pattern.SELF, 3)]
             for mode in ("propagate", "shared", "per_layer")}  # fmt: skip
    assert owned == {"propagate": [True, False, False], "shared": [True, False, False], "per_layer": [True] * 3}


def test_z_must_come_from_the_first_layer() -> None:
    x = torch.zeros(1, 13, 24)
    with pytest.raises(UserError, match="DBA in layer 1 needs Z of the layer before it"):
        DBA(site(Pattern.SELF, layer=1, layers=2))(x, x, Masks())


@pytest.mark.parametrize("keys", [{}, {"optimize_n": False}], ids=["dba", "full_n"])
def test_dropout_acts_on_the_weights(keys: dict[str, Any]) -> None:
    attention, x = one(partial(small, **keys), dropout=0.5), tokens(2, LONGEST, 24)
    assert not torch.allclose(attention(x, x, Masks())[0], copy.deepcopy(attention).eval()(x, x, Masks())[0])


@pytest.mark.parametrize(("init", "variance"), [("unbiased", 1 / 64), ("printed", 1 / 1024), ("xavier", 2 / 1088)])
def test_variance_of_r(init: str, variance: float) -> None:
    m = DBA(site(Pattern.SELF, dim=1024), d_in=64, r_init=init)
    assert m.r_query.weight.var().item() == pytest.approx(variance, rel=0.05)
