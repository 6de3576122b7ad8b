"""BLRP: the batched encoder against the printed equations, its exact limits, its switches and its sizes."""

import itertools
import math

import pytest
import torch
from attention.cells import prefix
from reference import blrp as printed
from reference.tlb import cross_block, sinusoids
from segment_checks import LENGTHS, agree, rows, unusual
from torch import Tensor, nn
from torch.testing import assert_close

from subquad.backbones.blrp import BLRPEncoder
from subquad.backbones.segment_recurrence import Segments, mapped, merged
from subquad.backbones.tlb import TLBEncoder
from subquad.blocks.dynamic_projection import DynamicProjection
from subquad.specs import DataSpec

SPEC = DataSpec(max_len=37, vocab=11, classes=4)
FORMS = ("per_head_value", "per_head", "single")


def encoder(spec: DataSpec = SPEC, **changes) -> BLRPEncoder:
    settings = {"dim": 12, "heads": 3, "ffn": 10, "segment": 5, "latents": 4} | changes
    return unusual(BLRPEncoder(spec, **settings))


def latents(model: BLRPEncoder, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
    """L_FINAL."""
    return model.latents_of(model.cut(model.embed(tokens), valid))


def check(lengths: str, **changes) -> None:
    """The encoder with these keys against the printed equations."""
    model = encoder(**changes)
    heads = changes.get("heads", 3)
    settings = {
        "segment": changes.get("segment", 5), "count": changes.get("latents", 4), "heads": heads,
        "scale": math.sqrt(12 if "scale" in changes else math.ceil(12 / heads)),
        "direction": changes.get("direction", "bi"), "form": changes.get("phi", "per_head_value"),
        "inits": tuple(changes.get(key, "phi_residual") for key in ("forward_init", "backward_init")),
        "phi_input": changes.get("phi_input", "raw"), "phi_share": changes.get("phi_share", "separate"),
    }  # fmt: skip
    agree(model, lambda x: printed.latents(list(model.ways), x, **settings), LENGTHS[lengths])


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("share", ["all", "latent_only", "none"])
def test_the_batch_equals_the_equations(lengths: str, share: str) -> None:
    check(lengths, share_directions=share)


@pytest.mark.parametrize(
    "changes",
    [
        {"segment": 7, "latents": 6}, {"self_layers": 1}, {"scale": "d_model"}, {"heads": 5}, {"phi": "per_head"},
        {"phi": "single"}, {"phi": "per_head", "heads": 5}, {"phi_bias": True}, {"phi_input": "with_pos"},
        {"phi_share": "identical"}, {"phi_share": "siamese"}, {"phi_share": "siamese", "phi_input": "with_pos"},
        {"bias": False},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("lengths", ["padded", "20"])
def test_every_switch_equals_the_equations(lengths: str, changes: dict) -> None:
    check(lengths, **changes)


INITS = ("phi_residual", "phi_init_only", "pos")


@pytest.mark.parametrize("inits", [*itertools.product(INITS, INITS)], ids=str)
def test_every_row_of_table_3_equals_the_equations(inits: tuple[str, str]) -> None:
    check("padded", forward_init=inits[0], backward_init=inits[1])


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_every_one_way_row_of_table_3_equals_the_equations(direction: str, init: str) -> None:
    check("padded", direction=direction, forward_init=init, backward_init=init)


def test_one_segment_is_three_steps_of_one_memory() -> None:
    """T = 1 and one I: X̃F = X̃B, and duplicated keys change nothing."""
    model = encoder(segment=37, phi_share="identical")
    tokens, _ = rows([20, 20])
    blocks = model.ways[0].blocks
    raw = model.cut(model.embed(tokens), None)
    initial, local = model.ways[0].phi(*merged(raw)), blocks.attend_within(mapped(raw, model.position))
    for row in range(2):
        recorded = cross_block(blocks.segment, local[row, 0], initial[row], 3, 2.0)
        once = cross_block(blocks.latent, initial[row], recorded, 3, 2.0)
        twice = cross_block(blocks.latent, once, recorded, 3, 2.0)
        assert_close(latents(model, tokens)[row], twice, rtol=0, atol=1e-12)


def test_duplicated_keys_change_nothing() -> None:
    block, x, memory = encoder().ways[0].blocks.latent, torch.randn(2, 4, 12).double(), torch.randn(2, 7, 12).double()
    once = block(x, block.queries(x), block.memory(memory), None)
    twice = block(x, block.queries(x), block.memory(torch.cat([memory, memory], 1)), None)
    assert_close(twice, once, rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", ["separate", "siamese"])
def test_segments_of_padding_are_no_steps(share: str) -> None:
    model, (tokens, valid) = encoder(phi_share=share), rows([13, 7])
    longer = nn.functional.pad(tokens, (0, 24))
    assert_close(latents(model, longer, prefix([13, 7], 37)), latents(model, tokens, valid), rtol=0, atol=1e-12)
    naive = encoder(phi_share=share, pad_aware=False)
    naive.load_state_dict(model.state_dict())
    assert_close(latents(naive, tokens[:1], None), latents(model, tokens[:1], None), rtol=0, atol=1e-12)
    change = latents(naive, longer, prefix([13, 7], 37)) - latents(naive, tokens, valid)
    assert change.abs().max() > 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_phi_forgets_the_order_of_tokens(form: str) -> None:
    phi, x = unusual(DynamicProjection(12, 3, 4, form, bias=True)), torch.randn(2, 9, 12).double()
    assert_close(phi(x[:, torch.randperm(9)], None), phi(x, None), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_phi_without_scores_is_the_mean(form: str) -> None:
    phi, x = unusual(DynamicProjection(12, 3, 4, form, bias=False)), torch.randn(2, 9, 12).double()
    nn.init.zeros_(phi.score.weight)
    mask = prefix([9, 5], 9)
    mean = torch.stack([x[0].mean(0), x[1, :5].mean(0)])
    want = phi.norm(mean if phi.value is None else phi.value(mean))
    assert_close(phi(x, mask), want[:, None].expand(-1, 4, -1), rtol=0, atol=1e-12)


def test_the_bias_of_phi_changes_nothing() -> None:
    phi, x = unusual(DynamicProjection(12, 3, 4, "per_head_value", bias=True)), torch.randn(2, 9, 12).double()
    before = phi(x, None)
    phi.score.bias.data.normal_()
    assert_close(phi(x, None), before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_phi_stays_exact_in_mixed_precision(dtype: torch.dtype) -> None:
    phi, x = unusual(DynamicProjection(12, 3, 4, "per_head_value", False)).to(dtype), torch.randn(2, 9, 12, dtype=dtype)
    exact = phi(x, None)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(phi(x, None), exact)


def test_forwards_from_positions_it_is_tlb() -> None:
    model = encoder(direction="fwd", forward_init="pos", latent_pos="each_step", bias=False)
    tlb = unusual(TLBEncoder(SPEC, dim=12, heads=3, ffn=10, segment=5, latents=4))
    weights = {name.replace("ways.0.blocks.", "blocks."): tensor for name, tensor in model.state_dict().items()}
    tlb.load_state_dict(weights)
    tokens, valid = rows([37, 20, 13, 1])
    assert_close(model(tokens, valid), tlb(tokens, valid), rtol=0, atol=1e-12)
    once = encoder(direction="fwd", forward_init="pos", bias=False)
    once.load_state_dict(model.state_dict())
    assert_close(once(tokens, valid)[3], tlb(tokens, valid)[3], rtol=0, atol=1e-12)
    assert not torch.allclose(once(tokens, valid)[0], tlb(tokens, valid)[0])


@pytest.mark.parametrize("init", INITS)
def test_backwards_is_forwards_on_reversed_segments(init: str) -> None:
    back = encoder(direction="bwd", backward_init=init)
    forth = encoder(direction="fwd", forward_init=init)
    forth.load_state_dict(back.state_dict())
    tokens, _ = rows([35, 35])
    reversed_tokens = tokens.unflatten(1, (7, 5)).flip(1).flatten(1)
    assert_close(back(tokens, None), forth(reversed_tokens, None), rtol=0, atol=1e-12)
    assert not torch.allclose(back(tokens, None), forth(tokens, None))


def names(model: nn.Module) -> list[set[str]]:
    """Whose parameters each pass uses, by identity."""
    known = {id(p): name for name, p in model.named_parameters()}
    return [{known[id(p)] for p in way.blocks.parameters()} for way in model.ways]


def test_what_the_passes_share() -> None:
    forth, back = names(encoder())
    assert forth == back
    forth, back = names(encoder(share_directions="latent_only"))
    assert forth & back == {name for name in forth if ".latent." in name}
    assert forth & back
    forth, back = names(encoder(share_directions="none"))
    assert not forth & back


@pytest.mark.parametrize(("share", "expected"), [("separate", 2), ("identical", 1), ("siamese", 1)])
def test_how_many_projections_there_are(share: str, expected: int) -> None:
    assert len({id(way.phi) for way in encoder(phi_share=share).ways}) == expected


def test_the_start_of_each_pass() -> None:
    """One I, one I seen from both ends, or two."""
    tokens, _ = rows([20, 20])
    for share, same in (("identical", True), ("siamese", False), ("separate", False)):
        model = encoder(phi_share=share)
        source = model.cut(model.embed(tokens), None)
        forth, back = (model._initial(way, source) for way in model.ways)
        assert torch.allclose(forth, back) == same
        if share == "siamese":
            assert_close(back, model._initial(model.ways[0], flipped(source)), rtol=0, atol=1e-12)


def flipped(source: Segments) -> Segments:
    return Segments(source.x.flip(1), source.real.flip(1), source.full)


def test_gradients_reach_the_first_and_the_last_segment() -> None:
    model = encoder(DataSpec(max_len=37, channels=3, classes=4), forward_init="pos", backward_init="pos")
    series = torch.randn(1, 37, 3, dtype=torch.float64, requires_grad=True)
    model(series, None).square().sum().backward()
    assert (series.grad.abs().amax((0, 2)) > 1e-9).all()


@pytest.mark.parametrize("pool", ["mean", "first", "flatten"])
def test_what_the_head_reads(pool: str) -> None:
    model, (tokens, valid) = encoder(pool=pool), rows([37, 20])
    normed = model.norm(latents(model, tokens, valid))
    want = {"mean": normed.mean(1), "first": normed[:, 0], "flatten": normed.flatten(1)}[pool]
    assert_close(model(tokens, valid), model.head(want), rtol=0, atol=1e-12)
    assert encoder(pool=pool, head_hidden=7).head[0].in_features == (48 if pool == "flatten" else 12)


def test_learned_positions_are_one_table_for_all_segments() -> None:
    table = encoder(position="learned").position.table
    assert table.shape == (5, 12)
    assert table.requires_grad


def size(vocab: int, **changes) -> int:
    spec = DataSpec(max_len=2000, vocab=vocab, classes=10)
    model = BLRPEncoder(spec, dim=64, heads=8, ffn=128, segment=100, latents=100, head_hidden=128, **changes)
    return sum(p.numel() for p in model.parameters())


def test_the_number_of_parameters_is_the_printed_258k() -> None:
    assert size(17, phi_bias=True) == 257_546
    assert size(16, share_directions="latent_only", phi="single") == 258_250
    assert size(17) == 257_546 - 2 * 8 * 100


def test_positions_of_the_reading_order() -> None:
    model = encoder(phi_share="siamese")
    valid = prefix([13, 7], 15)
    source = model.cut(torch.zeros(2, 15, 12).double(), valid)
    recorded = []
    model.ways[0].phi.register_forward_hook(lambda _, given, __: recorded.append(given[0]))
    model._initial(model.ways[1], source)
    places = [10, 11, 12, 13, 14, 5, 6, 7, 8, 9, 0, 1, 2], [5, 6, 7, 8, 9, 0, 1]
    table = sinusoids(15, 12)
    for row, order in zip(recorded[0], places, strict=True):
        assert_close(row[: len(order)], table[order], rtol=0, atol=1e-12)
