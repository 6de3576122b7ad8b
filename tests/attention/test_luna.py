"""Luna against Eq. 5-7 of its paper, on both sides of h·l = d, where the order of its products changes."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from reference import luna as reference
from torch.testing import assert_close

from attention.cells import HEADS, run, site
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.luna import Luna
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError

both_patterns = pytest.mark.parametrize("pattern", Pattern)
narrow_and_wide = pytest.mark.parametrize("l", [5, 16])


@pytest.mark.parametrize("lengths", LENGTHS)
@both_patterns
@pytest.mark.parametrize("dynamic", [True, False])
@narrow_and_wide
def test_equals_the_printed_form(l: int, dynamic: bool, pattern: Pattern, lengths: str) -> None:  # noqa: E741
    layers = stack(partial(Luna, l=l, dynamic=dynamic), pattern, layers=3)

    def layer(module, x, context, carry):
        return reference.layer(module, x, context, carry, heads=HEADS, dynamic=dynamic, last=module is layers[-1])

    agree(layers, layer, lengths)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_norm_of_the_first_latents(lengths: str) -> None:
    layers = stack(partial(Luna, l=5, latent_norm=True), Pattern.SELF, layers=3)
    assert [layer.latent_norm is None for layer in layers] == [False, True, True]

    def layer(module, x, context, carry):
        return reference.layer(module, x, context, carry, heads=HEADS, last=module is layers[-1])

    agree(layers, layer, lengths)


@pytest.mark.parametrize(("norm", "std"), [(False, 1.0), (True, 64**-0.5)])
def test_the_first_latents_start_small_where_a_norm_follows(norm: bool, std: float) -> None:
    latent = Luna(site(Pattern.SELF, dim=64), l=512, latent_norm=norm).latent
    assert latent.std().item() == pytest.approx(std, rel=0.05)


def test_latent_dropout_acts_on_the_first_latents_and_on_what_is_packed() -> None:
    """In training; the latents that a later layer is given were dropped before."""
    x, given = tokens(2, LONGEST, 24), tokens(2, 5, 24)
    layers = stack(partial(Luna, l=5, latent_dropout=0.5), Pattern.SELF, layers=3)
    torch.manual_seed(0)
    for number, carry, moved in ((0, None, [True, True]), (1, given, [False, True])):
        layer, plain = layers[number], copy.deepcopy(layers[number]).eval()
        got, want = layer(x, x, Masks(), carry), plain(x, x, Masks(), carry)
        assert [not torch.allclose(a, b) for a, b in zip(got, want, strict=True)] == moved
    layer = layers[1]
    packed = layer._pack(given, x, None)
    torch.manual_seed(1)
    handed = layer(x, x, Masks(), given)[1]
    torch.manual_seed(1)
    assert_close(handed, layer.norm(given + F.dropout(packed, 0.5)))


def test_latent_dropout_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UserError, match=r"attention\.latent_dropout is 1\.0; .* from 0 up to 1"):
        Luna(site(Pattern.SELF), latent_dropout=1.0)


@both_patterns
@narrow_and_wide
def test_equals_two_fused_attentions(l: int, pattern: Pattern) -> None:  # noqa: E741
    m = one(partial(Luna, l=l), pattern)
    context = tokens(3, LONGEST, 24)
    x = context if pattern is Pattern.SELF else tokens(3, 7, 24)

    def heads(t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    pack = F.scaled_dot_product_attention(
        heads(m.pack_query(m.latent.expand(3, -1, -1))), heads(m.pack_key(context)), heads(m.pack_value(context))
    )
    packed = pack.transpose(1, 2).flatten(2)
    unpack = F.scaled_dot_product_attention(heads(m.query(x)), heads(m.key(packed)), heads(m.value(packed)))
    assert_close(m(x, context, Masks())[0], m.out(unpack.transpose(1, 2).flatten(2)))


@narrow_and_wide
def test_constant_context_is_returned_to_every_query(l: int) -> None:  # noqa: E741
    """Weights of pack and unpack sum to 1, so a context of one value c gives W_o W_v W_pv c whatever the weights."""
    m = one(partial(Luna, l=l), Pattern.CROSS)
    c = tokens(2, 1, 24)
    y, _ = m(tokens(2, 9, 24), c.expand(-1, 30, -1), Masks())
    assert_close(y, m.out(m.value(m.pack_value(c))).expand(-1, 9, -1))


def test_rank_of_the_mixing_is_at_most_l() -> None:
    m = one(partial(Luna, l=5), heads=1)
    x = tokens(1, LONGEST, 24)
    y, _ = m(x, x, Masks())
    assert torch.linalg.matrix_rank(y[0] - m.out.bias) == 5


def test_tokens_may_be_permuted() -> None:
    layers, order, x = stack(Luna, Pattern.SELF), torch.randperm(LONGEST), tokens(2, LONGEST, 24)
    moved = x[:, order]
    assert_close(run(layers, moved, moved), run(layers, x, x)[:, order])


def test_dropout_acts_on_the_weights() -> None:
    attention, x = one(Luna, dropout=0.5), tokens(2, LONGEST, 24)
    assert not torch.allclose(attention(x, x, Masks())[0], copy.deepcopy(attention).eval()(x, x, Masks())[0])


def test_latents_must_come_from_the_first_layer() -> None:
    x = torch.zeros(1, 13, 24)
    with pytest.raises(UserError, match="Luna in layer 1 needs the latent of the layer before it"):
        Luna(site(Pattern.SELF, layer=1, layers=2))(x, x, Masks())
