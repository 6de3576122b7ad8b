"""The dual encoder: shared weights, four ways to combine features, published heads, and independence of padding."""

import functools

import pytest
import torch
from attention.cells import prefix
from conftest import encoders, made
from torch.testing import assert_close

from subquad.backbones.dual_encoder import DualEncoder
from subquad.backbones.encoder import sized
from subquad.backbones.mvts import MVTSEncoder
from subquad.backbones.sequence import SequenceEncoder
from subquad.config.compose import load_factory
from subquad.specs import DataSpec
from subquad.utils.errors import UserError

LONGEST = 13
SPEC = DataSpec(max_len=LONGEST, vocab=9, classes=2)
SMALL = {"linformer": {"k": 4}, "luna": {"l": 4}, "dba": {"d_p": 4, "d_in": 8}}
NAMES = ["softmax", "dba", "luna", "linformer", *encoders()]
exactly = {"rtol": 0, "atol": 1e-10}


def encoder(name="softmax", **changes):
    sizes = {"dim": 16, "heads": 2, "ffn": 24} | changes
    if name in encoders():
        small = {"segment": 4, "latents": 3, "layers": 2, "d_state": 4, "d_p": 5}
        return sized(load_factory(f"backbone={name}"), **sizes, **small, dropout=0.0, attention_dropout=0.0)
    attention = functools.partial(made("attention", name), **SMALL.get(name, {}))
    return functools.partial(SequenceEncoder, attention=attention, layers=2, **sizes)


def towers(name="softmax", combine="nli", spec=SPEC, head=(None, 1, "relu"), **changes):
    return DualEncoder(spec, encoder(name, **changes), combine, *head).double().eval()


def side(lengths=(13, 7, 1)):
    valid = prefix(list(lengths), LONGEST)
    return torch.randint(1, SPEC.vocab, valid.shape).masked_fill(~valid, 0), valid


def numbers(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_neighbours_never_change_a_prediction(name):
    model, (first, one), (second, other) = towers(name), side(), side((2, 13, 5))
    whole = model(first, one, second, other)
    assert whole.shape == (3, 2)
    noise = torch.randint(1, SPEC.vocab, first.shape)
    assert_close(model(torch.where(one, first, noise), one, torch.where(other, second, noise), other), whole, **exactly)
    for i, (n, m) in enumerate(((13, 2), (7, 13), (1, 5))):
        size = max(n, m)
        alone = [x[i : i + 1, :size] for x in (first, one, second, other)]
        assert_close(model(*alone), whole[i : i + 1], **exactly)


@pytest.mark.parametrize("pooling", ["cls", "cls_apart", "mean", "flatten"])
def test_features_are_what_the_encoder_gives_each_text_alone(pooling):
    model, (first, one), (second, other) = towers(pooling=pooling), side(), side((2, 13, 5))
    a, b = model.tower(first, one), model.tower(second, other)
    assert a.shape == (3, model.tower.feature_dim)
    assert_close(model(first, one, second, other), model.head(torch.cat([a, b, a * b, a - b], -1)), **exactly)


def test_either_side_may_be_without_padding():
    model, (first, _), (second, other) = towers(), side((13, 13)), side((4, 13))
    full = torch.ones_like(other)
    assert_close(model(first, None, second, other), model(first, full, second, other), **exactly)
    assert_close(model(second, other, first, None), model(second, other, first, full), **exactly)
    assert_close(model(first, None, first, None), model(first, full, first, full), **exactly)


def test_the_published_ways_to_combine():
    (first, one), (second, other) = side(), side((2, 13, 5))
    results = {}
    for combine in ("concat", "concat_reversed", "nli", "nli_difference_first"):
        torch.manual_seed(0)
        model = towers(combine=combine)
        model.head = torch.nn.Identity()
        results[combine] = model(first, one, second, other).chunk(2 if combine.startswith("concat") else 4, -1)
    a, b = results["concat"]
    assert_close(results["concat_reversed"], (b, a))
    assert_close(results["nli"], (a, b, a * b, a - b))
    assert_close(results["nli_difference_first"], (a, b, a - b, a * b))


def test_the_two_orders_of_four_features_are_one_model():
    (first, one), (second, other) = side(), side((2, 13, 5))
    nli, s4 = towers(), towers(combine="nli_difference_first")
    s4.load_state_dict(nli.state_dict())
    a, b, product, difference = nli.head.weight.data.chunk(4, 1)
    s4.head.weight.data = torch.cat([a, b, difference, product], 1)
    assert_close(s4(first, one, second, other), nli(first, one, second, other), **exactly)


@pytest.mark.parametrize("name", NAMES)
def test_both_texts_share_every_weight_and_the_encoders_head_is_gone(name):
    alone, pair = encoder(name)(spec=SPEC), towers(name)
    assert numbers(pair.tower) == numbers(alone) - numbers(alone.head)
    assert {key for key in alone.state_dict() if not key.startswith("head.")} == set(pair.tower.state_dict())
    assert numbers(pair) == numbers(pair.tower) + 2 * (4 * pair.tower.feature_dim + 1)


@pytest.mark.parametrize(
    ("combine", "head", "widths", "activation"),
    [
        ("concat_reversed", (512, 1, "relu"), [32, 512, 2], torch.nn.ReLU),  # Luna
        ("nli", (128, 1, "relu"), [64, 128, 2], torch.nn.ReLU),  # Nyströmformer
        ("concat", (512, 2, "relu"), [32, 512, 256, 2], torch.nn.ReLU),  # the benchmark's code, TLB
        ("nli_difference_first", (16, 1, "gelu"), [64, 16, 2], torch.nn.GELU),  # S4
        ("nli", (None, 1, "relu"), [64, 2], None),
    ],
)
def test_heads_are_the_published_ones(combine, head, widths, activation):
    model = towers(combine=combine, head=head)
    maps = [part for part in model.head.modules() if isinstance(part, torch.nn.Linear)]
    assert [maps[0].in_features, *(part.out_features for part in maps)] == widths
    between = [part for part in model.head.children() if not isinstance(part, torch.nn.Linear)]
    assert len(between) == len(widths) - 2
    assert all(type(part) is activation for part in between)


def test_both_texts_reach_every_weight():
    model, (first, one), (second, other) = towers("dba"), side(), side((2, 13, 5))
    recorded = []
    model.tower.embed.register_forward_hook(lambda _, given, out: recorded.append(given[0]))
    model(first, one, second, other).square().sum().backward()
    assert_close(recorded, [torch.cat([first, second])])
    assert all(p.grad is not None for p in model.parameters())


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"backbone\.head_layers is 0"):
        towers(head=(4, 0, "relu"))
    with pytest.raises(UserError, match="choose backbone=sequence"):
        DualEncoder(SPEC, functools.partial(MVTSEncoder, attention=None, layers=1, dim=8, heads=2, ffn=8))
