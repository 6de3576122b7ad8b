"""TLB: the batched encoder against a loop over segments, its sizes, and its own properties."""

import math

import pytest
import torch
from conftest import load_factory
from reference import tlb as printed
from segment_checks import LENGTHS, agree, rows, unusual
from torch import Tensor
from torch.testing import assert_close

from subquad.backbones.tlb import TLBEncoder
from subquad.specs import DataSpec
from subquad.utils.errors import UserError

SPEC = DataSpec(max_len=37, vocab=11, classes=4)


def encoder(spec: DataSpec = SPEC, **changes) -> TLBEncoder:
    settings = {"dim": 12, "heads": 3, "ffn": 10, "segment": 5, "latents": 4} | changes
    return unusual(TLBEncoder(spec, **settings))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(
    "changes", [{}, {"segment": 7, "self_layers": 1}, {"bias": True, "scale": "d_model"}, {"heads": 5}], ids=str
)
def test_the_batch_equals_the_loop(lengths: str, changes: dict) -> None:
    model = encoder(**changes)
    heads = changes.get("heads", 3)
    scale = math.sqrt(12 if "scale" in changes else math.ceil(12 / heads))

    def latents(x: Tensor) -> Tensor:
        segment = changes.get("segment", 5)
        return printed.latents(model.blocks, x, segment=segment, count=4, heads=heads, scale=scale)

    agree(model, latents, LENGTHS[lengths])


def test_all_segments_of_all_rows_attend_in_one_call() -> None:
    model, sizes, steps = encoder(), [], []
    for block in model.blocks.self_blocks:
        block.register_forward_hook(lambda _, given, __: sizes.append(given[0].shape))
    model.blocks.latent.register_forward_hook(lambda _, given, __: steps.append(given[0].shape))
    model(rows([37, 20])[0], None)
    assert sizes == [(2 * 8, 5, 12)] * 2
    assert steps == [(2, 4, 12)] * 8


def test_positions_are_added_to_the_latents_at_every_step() -> None:
    """Blocks that add nothing leave the sum of the positions behind."""
    model = encoder(bias=True)
    for block in (model.blocks.segment, model.blocks.latent):
        for p in (*block.attention.out.parameters(), *block.feed_forward[3].parameters()):
            torch.nn.init.zeros_(p.data)
    recorded = []
    model.norm.register_forward_hook(lambda _, given, __: recorded.append(given[0]))
    model(*rows([37, 20, 4]))
    for state, steps in zip(recorded[0], (8, 4, 1), strict=True):
        assert_close(state, steps * printed.sinusoids(4, 12))


def test_positions_start_anew_in_every_segment() -> None:
    model = encoder()
    within = []
    model.blocks.self_blocks[0].register_forward_hook(lambda _, given, __: within.append(given[0]))
    model(torch.full((1, 20), 3), None)
    assert_close(within[0], within[0][:1].expand(4, -1, -1), rtol=0, atol=0)
    assert not torch.equal(within[0][0, 0], within[0][0, 1])


@pytest.mark.parametrize("heads", [5, 12])
def test_heads_need_not_divide_the_width(heads: int) -> None:
    maps = encoder(heads=heads).blocks.latent.attention
    assert maps.query.out_features == heads * math.ceil(12 / heads)
    assert maps.out.out_features == 12


def test_maps_start_as_in_the_released_code() -> None:
    maps = TLBEncoder(SPEC, dim=64, heads=4, ffn=10).blocks.latent.attention
    limit = math.sqrt(6 / 128)
    assert maps.query.bias is None
    for weight in (maps.query.weight, *maps.key_value.weight.chunk(2), maps.out.weight):
        assert 0.95 * limit < weight.abs().max() <= limit


@pytest.mark.parametrize(
    "changes",
    [{"segment": 0}, {"latents": 0}, {"self_layers": 0}, {"heads": 0}],
    ids=str,
)
def test_sizes_below_one_are_refused(changes: dict) -> None:
    with pytest.raises(UserError):
        encoder(**changes)


def test_the_configured_choice_is_this_class() -> None:
    assert load_factory("backbone=tlb").func is TLBEncoder
