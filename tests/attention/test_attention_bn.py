"""Attention-BN against its printed form, and the identities between its forms."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from attention.cells import HEADS, prefix, site
from attention.checks import LENGTHS, agree, by_head, one, stack, tokens
from subquad.attention.attention_bn import AttentionBN, naive_attention_bn
from subquad.attention.softmax import Softmax
from subquad.specs import Masks, Pattern


def layer(beta: float | None = 1.0, **choices):
    """The naive layer; `beta` None: the module's parameter."""
    return by_head(
        lambda module, _, *qkv: naive_attention_bn(*qkv, beta=module.beta if beta is None else beta, **choices), HEADS
    )


exactly = {"rtol": 0, "atol": 0}


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("pattern", Pattern)
@pytest.mark.parametrize("choices", [{}, {"beta": 0.6}, {"variance": True}, {"beta": 0.6, "variance": True}], ids=str)
def test_equals_the_printed_form(choices: dict, pattern: Pattern, lengths: str) -> None:
    agree(stack(partial(AttentionBN, **choices), pattern), layer(**choices), lengths)


@pytest.mark.parametrize("pattern", Pattern)
def test_learned_weight_of_the_mean(pattern: Pattern) -> None:
    factory = partial(AttentionBN, beta=0.3, learned=True)
    assert factory(site=site(pattern)).beta == torch.tensor(0.3)
    agree(stack(factory, pattern), layer(beta=None), "padded")


def test_epsilon_is_added_to_the_variance() -> None:
    choices = {"variance": True, "eps": 0.1}
    agree(stack(partial(AttentionBN, **choices), Pattern.SELF), layer(**choices), "37")


def keys_of(attention: AttentionBN, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = attention.projections.qkv(x, context)
    return q, k, v, k.mean(2, keepdim=True)


FORMS = {
    "both centred": lambda q, k, mean: (q - mean) @ (k - mean).mT,
    "query centred": lambda q, k, mean: (q - mean) @ k.mT,
    "bias of each key": lambda q, k, mean: q @ k.mT - mean @ k.mT,
}


@pytest.mark.parametrize("form", FORMS)
def test_three_forms_have_the_same_outputs_and_gradients(form: str) -> None:
    attention = one(partial(AttentionBN, beta=0.7), Pattern.CROSS)
    x, context = tokens(2, 9, 24).requires_grad_(), tokens(2, 13, 24).requires_grad_()
    q, k, v, mean = keys_of(attention, x, context)
    logits = FORMS[form](q, k, 0.7 * mean) / math.sqrt(q.shape[-1])
    written = attention.projections.merge(logits.softmax(-1) @ v)
    y, _ = attention(x, context, Masks())
    assert_close(y, written)
    inputs, weights = [x, context, *attention.parameters()], torch.randn_like(y)
    gradients = [torch.autograd.grad(form, inputs, weights) for form in (y, written)]
    assert_close(*gradients)


def test_full_form_subtracts_the_similarity_to_all_keys() -> None:
    """Eq. 24: q_iᵀ(k_j ⊘ s²) less the mean over j' of k_j'ᵀ(k_j ⊘ s²)."""
    attention, x = one(partial(AttentionBN, variance=True)), tokens(2, 13, 24)
    q, k, v, _ = keys_of(attention, x, x)
    scaled = k / (k.var(2, correction=0, keepdim=True) + 1e-5)
    similarity = sum(k[:, :, j : j + 1] @ scaled.mT for j in range(13)) / 13
    weights = ((q @ scaled.mT - similarity) / math.sqrt(q.shape[-1])).softmax(-1)
    assert_close(attention(x, x, Masks())[0], attention.projections.merge(weights @ v))


def as_softmax(attention: nn.Module) -> Softmax:
    twin = Softmax(attention.site).double()
    twin.load_state_dict(attention.state_dict())
    return twin


@pytest.mark.parametrize("masked", [False, True])
def test_weight_of_zero_is_softmax_attention(masked: bool) -> None:
    attention, x = one(partial(AttentionBN, beta=0.0)), tokens(3, 13, 24)
    mask = prefix([13, 9, 1], 13) if masked else None
    assert_close(attention(x, x, Masks(mask, mask)), as_softmax(attention)(x, x, Masks(mask, mask)), **exactly)


@pytest.mark.parametrize("variance", [False, True])
@pytest.mark.parametrize("length", [1, 13])
def test_keys_that_do_not_differ_are_as_in_softmax_attention(length: int, variance: bool) -> None:
    attention = one(partial(AttentionBN, variance=variance), Pattern.CROSS)
    x, context = tokens(2, 9, 24), tokens(2, 1, 24).expand(-1, length, -1)
    assert_close(attention(x, context, Masks())[0], as_softmax(attention)(x, context, Masks())[0])


def test_keys_that_differ_are_not() -> None:
    attention, x = one(AttentionBN), tokens(2, 13, 24)
    assert not torch.allclose(attention(x, x, Masks())[0], as_softmax(attention)(x, x, Masks())[0], atol=1e-3)


def test_recentring_is_another_bias_of_the_queries() -> None:
    attention, x = one(partial(AttentionBN, beta=0.7)), tokens(1, 13, 24)
    twin = as_softmax(attention)
    with torch.no_grad():
        twin.projections.query.bias -= 0.7 * attention.projections.key(x).mean((0, 1))
    assert_close(attention(x, x, Masks())[0], twin(x, x, Masks())[0])


@pytest.mark.parametrize("variance", [False, True])
def test_keys_may_be_shifted_together(variance: bool) -> None:
    """At β = 1, a common shift of queries and keys changes no q − μ and no k − μ."""
    attention, x = one(partial(AttentionBN, variance=variance)), tokens(2, 13, 24)
    moved = copy.deepcopy(attention)
    with torch.no_grad():
        shift = torch.randn(24)
        moved.projections.query.bias += shift
        moved.projections.key.bias += shift
    assert_close(moved(x, x, Masks())[0], attention(x, x, Masks())[0])


@pytest.mark.parametrize("variance", [False, True])
def test_appended_padding_changes_nothing(variance: bool) -> None:
    attention, x = one(partial(AttentionBN, variance=variance)), tokens(2, 9, 24)
    longer, mask = torch.cat([x, 1e3 * tokens(2, 6, 24)], 1), prefix([9, 9], 15)
    assert_close(attention(longer, longer, Masks(mask, mask))[0][:, :9], attention(x, x, Masks())[0])


def test_dropout_acts_on_the_weights() -> None:
    attention, x = one(AttentionBN, dropout=0.5), tokens(2, 37, 24)
    assert not torch.allclose(attention(x, x, Masks())[0], copy.deepcopy(attention).eval()(x, x, Masks())[0])
