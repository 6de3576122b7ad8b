"""Linformer against Eq. 7 of its paper, and its exact limits."""

import copy
from functools import partial

import pytest
import torch
from omegaconf import OmegaConf
from reference.linformer import layer as naive_layer
from torch import nn
from torch.testing import assert_close

from attention.cells import HEADS, run, site
from attention.checks import LENGTHS, LONGEST, agree, one, stack, tokens
from subquad.attention.linformer import Linformer
from subquad.attention.softmax import Softmax
from subquad.specs import Masks, Pattern
from subquad.utils.errors import UserError

SHARINGS = ["none", "headwise", "kv", "layer"]
every_sharing = pytest.mark.parametrize("sharing", SHARINGS)
both_patterns = pytest.mark.parametrize("pattern", Pattern)
layer = partial(naive_layer, heads=HEADS, longest=LONGEST)


@pytest.mark.parametrize("lengths", LENGTHS)
@both_patterns
@every_sharing
@pytest.mark.parametrize("k", [3, 20])
def test_equals_the_printed_form(k: int, sharing: str, pattern: Pattern, lengths: str) -> None:
    agree(stack(partial(Linformer, k=k, sharing=sharing), pattern), partial(layer, sharing=sharing), lengths)


@pytest.mark.parametrize("lengths", LENGTHS)
@both_patterns
@pytest.mark.parametrize("sharing", ["headwise", "layer"])
@pytest.mark.parametrize("projection", ["mean", "max", "conv"])
def test_pooling_equals_the_printed_form(projection: str, sharing: str, pattern: Pattern, lengths: str) -> None:
    choices = {"k": 5, "sharing": sharing, "projection": projection}
    agree(stack(partial(Linformer, **choices), pattern), partial(layer, **choices), lengths)


@pytest.mark.parametrize("lengths", LENGTHS)
@both_patterns
@pytest.mark.parametrize("k", [[4, 2], [[1, 2, 3, 4], [4, 4, 20, 1]]])
def test_k_of_each_layer_and_head(k: list, pattern: Pattern, lengths: str) -> None:
    agree(stack(partial(Linformer, k=k, sharing="none"), pattern), partial(layer, sharing="none"), lengths)


def test_k_may_come_from_a_config() -> None:
    k = OmegaConf.create([[1, 2, 3, 4], [5, 6, 7, 8]])
    layers = stack(partial(Linformer, k=k, sharing="none"), Pattern.SELF)
    assert [[len(e) for e in layer.key_map] for layer in layers] == k


@both_patterns
@every_sharing
def test_identity_maps_give_softmax_attention(sharing: str, pattern: Pattern) -> None:
    attention = one(partial(Linformer, k=13, sharing=sharing), pattern, context_len=13)
    exact = one(Softmax, pattern, context_len=13)
    exact.load_state_dict(attention.state_dict(), strict=False)
    for matrix in [*attention.key_map, *attention.value_map]:
        nn.init.eye_(matrix)
    context = tokens(3, 13, 24)
    x = context if pattern is Pattern.SELF else tokens(3, 7, 24)
    assert_close(attention(x, context, Masks())[0], exact(x, context, Masks())[0])


@pytest.mark.parametrize("projection", ["linear", "conv"])
def test_block_averages_equal_mean_pooling(projection: str) -> None:
    attention = one(partial(Linformer, k=5, projection=projection), context_len=35)
    pooled = one(partial(Linformer, k=5, projection="mean"), context_len=35)
    pooled.load_state_dict(attention.state_dict(), strict=False)
    blocks = torch.eye(5).repeat_interleave(7, 1) / 7
    for matrix in [*attention.key_map, *attention.value_map]:
        matrix.data = torch.full((24, 7), 1 / 7).double() if projection == "conv" else blocks.double()
    x = tokens(3, 35, 24)
    assert_close(attention(x, x, Masks())[0], pooled(x, x, Masks())[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("sharing", "matrices"), [("none", 288), ("headwise", 24), ("kv", 12), ("layer", 1)])
def test_twelve_layers_of_twelve_heads_own(sharing: str, matrices: int) -> None:
    factory = partial(Linformer, k=4, sharing=sharing)
    layers = nn.ModuleList(factory(site(Pattern.SELF, heads=12, layer=i, layers=12)) for i in range(12))
    maps = [p for name, p in layers.named_parameters() if "projections" not in name]
    assert len(maps) == matrices
    assert sum(p.numel() for p in maps) == matrices * 4 * 13


def test_gradient_of_the_shared_map_is_the_sum_over_layers() -> None:
    shared = stack(partial(Linformer, k=5, sharing="layer"), Pattern.SELF, layers=3)
    owned = stack(partial(Linformer, k=5, sharing="kv"), Pattern.SELF, layers=3)
    owned.load_state_dict(shared.state_dict(), strict=False)
    for own in owned:
        own.key_map[0].data = shared[0].key_map[0].data.clone()
    x = tokens(2, LONGEST, 24)
    for layers in (shared, owned):
        run(layers, x, x).square().sum().backward()
    total = sum(own.key_map[0].grad for own in owned)
    assert_close(shared[0].key_map[0].grad, total)


def test_a_padded_window_is_no_slot() -> None:
    """One token alone in its window reads itself, however many empty windows follow."""
    attention = one(partial(Linformer, k=5, projection="mean"))
    p = attention.projections
    x, mask = tokens(1, LONGEST, 24), torch.arange(LONGEST)[None] < 1
    y, _ = attention(x, x, Masks(mask, mask))
    assert_close(y[:, 0], p.out(p.value(x[:, 0])))


def test_dropout_acts_on_the_weights() -> None:
    for k in (5, [[1, 2, 3, 4]]):
        attention = one(partial(Linformer, k=k, sharing="none"), dropout=0.5)
        x = tokens(2, LONGEST, 24)
        trained, exact = attention(x, x, Masks())[0], copy.deepcopy(attention).eval()(x, x, Masks())[0]
        assert not torch.allclose(trained, exact)


@pytest.mark.parametrize(
    ("k", "choices", "message"),
    [
        ([4, 2, 1], {}, "got 3 values of k for 2 layers"),
        ([[1, 2], [1, 2]], {"sharing": "none"}, "a k for each of the 4 heads"),
        ([[1, 2, 3, 4], [1, 2, 3, 4]], {}, "needs attention.sharing=none"),
        ([[1, 2, 3, 4], [1, 2, 3, 4]], {"sharing": "none", "projection": "mean"}, "attention.projection=linear"),
        ([4, 2], {"sharing": "layer"}, "cannot share one projection between layers of different k"),
        ([[4] * 4, [2] * 4], {"sharing": "layer"}, "cannot share one projection between layers of different k"),
    ],
)
def test_impossible_sizes_are_refused(k: int | list, choices: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        stack(partial(Linformer, k=k, **choices), Pattern.SELF)


def test_shared_map_must_come_from_the_first_layer() -> None:
    second = Linformer(site(Pattern.SELF, layer=1, layers=2), sharing="layer")
    x = torch.zeros(1, 13, 24)
    with pytest.raises(UserError, match="Linformer in layer 1 needs the projection of the first layer"):
        second(x, x, Masks())
