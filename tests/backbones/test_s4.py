"""S4 and S4D: the encoder against one recurrence for each channel, its sizes, its norms, and that it learns."""

import copy

import pytest
import torch
from attention.cells import prefix
from reference import s4 as printed
from torch import Tensor
from torch.testing import assert_close

from subquad.backbones.s4 import S4Encoder
from subquad.blocks.channel_norm import ChannelBatchNorm
from subquad.blocks.s4_layer import S4Layer
from subquad.blocks.state_space_parameters import DiagonalStateSpace, Rates
from subquad.specs import DataSpec
from subquad.utils.errors import UserError

SPEC = DataSpec(max_len=17, vocab=11, classes=4)
PLAIN = {"d_state": 6, "n_ssm": 2, "dt_max": 0.5}


def unusual(model: torch.nn.Module) -> torch.nn.Module:
    """In float64, with vectors and norms that are not at their starting values."""
    model.double().eval()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm | torch.nn.LayerNorm):
            torch.nn.init.normal_(module.weight, 0.5, 0.5)
            torch.nn.init.normal_(module.bias, 0.5, 0.5)
        if isinstance(module, ChannelBatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model


def encoder(spec: DataSpec = SPEC, **changes) -> S4Encoder:
    return unusual(S4Encoder(spec, 4, layers=2, **(PLAIN | changes)))


def rows(lengths: list[int]) -> tuple[Tensor, Tensor | None]:
    valid = prefix(lengths, max(lengths))
    return torch.randint(1, 11, valid.shape).masked_fill(~valid, 0), None if valid.all() else valid


def agree(model: S4Encoder, loop, lengths: list[int]) -> None:
    """Predictions and gradients equal those of the loop, run on each row by itself without padding."""
    tokens, valid = rows(lengths)
    got = model(tokens, valid)
    want = torch.stack([loop(model.embed(row[:n])) for row, n in zip(tokens, lengths, strict=True)])
    assert_close(got, want, rtol=1e-9, atol=1e-10)
    names, parameters = zip(*model.named_parameters(), strict=True)
    weights = torch.randn_like(got)
    fast, slow = (torch.autograd.grad(y, parameters, weights) for y in (got, want))
    for name, a, b in zip(names, fast, slow, strict=True):
        assert_close(a, b, rtol=1e-7, atol=1e-8, msg=lambda message, name=name: f"gradient of {name}: {message}")


@pytest.mark.parametrize("lengths", [[17, 17], [9, 9], [17, 5, 1]], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"order": "post", "norm": "layer"},
        {"n_ssm": None, "readout": "last"},
        {"kernel": "diagonal"},
        {"kernel": "diagonal", "init": "lin", "discretization": "bilinear", "n_ssm": 4},
        {"kernel": "diagonal", "init": "inv", "n_ssm": 1},
    ],
    ids=str,
)
def test_the_encoder_equals_the_recurrence(lengths, changes):
    model = encoder(**changes)
    pre, readout = changes.get("order") != "post", changes.get("readout", "mean")
    agree(model, lambda x: printed.s4(model, x, pre, readout), lengths)


def test_a_model_for_longer_sequences_goes_on_with_the_same_kernel():
    short = encoder()
    long = encoder(DataSpec(max_len=100, vocab=11, classes=4))
    long.load_state_dict(copy.deepcopy(short.state_dict()))
    kernel, longer = (model.blocks[0].layer.kernel for model in (short, long))
    assert kernel.kernel_len == longer.kernel_len == 18
    assert_close(longer(90)[..., :17], kernel(17), rtol=0, atol=1e-10)
    a_bar, b_bar, c = printed.model_of(longer, 3)
    impulse = printed.run(a_bar, b_bar, c[1], torch.eye(1, 90, dtype=torch.float64)[0])
    assert_close(longer(90)[1, 3], impulse, rtol=0, atol=1e-10)


def test_parameters_are_never_kept_in_16_bits():
    model = S4Encoder(SPEC, 4, layers=1, **PLAIN).to(torch.bfloat16)
    kernel = model.blocks[0].layer.kernel
    assert {p.dtype for p in kernel.parameters()} == {torch.float32}
    assert model.head.weight.dtype == torch.bfloat16
    assert model(rows([17, 5])[0], None).dtype == torch.bfloat16
    assert {p.dtype for p in model.double().parameters()} == {torch.float64}


def test_the_first_steps_lie_between_their_limits():
    kernel = DiagonalStateSpace(400, "lin", "zoh", 2, None, 0.001, 0.1, Rates())
    assert kernel.dt.min() > 0.001 - 1e-9
    assert kernel.dt.max() < 0.1 + 1e-9
    assert kernel.dt.log10().mean().item() == pytest.approx(-2, abs=0.1)  # log-uniform


def test_batch_norm_leaves_padding_out():
    valid = prefix([5, 2, 0], 6)
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    norm, plain = ChannelBatchNorm(4).double(), torch.nn.BatchNorm1d(4).double()
    for _ in range(2):
        got = norm(x, valid)
        want = plain(x.mT[valid])
        assert_close(got.mT[valid], want)
    assert_close(dict(norm.state_dict()), dict(plain.state_dict()))
    assert_close(norm.eval()(x, valid), plain.eval()(x))
    norm.train()
    poisoned = x.masked_fill(~valid[:, None], 1e3)
    assert_close(norm(poisoned, valid).mT[valid], norm(x, valid).mT[valid], rtol=0, atol=0)
    assert_close(norm(x, torch.ones_like(valid)), norm(x, None))


def test_padding_of_a_training_batch_changes_nothing():
    tokens, valid = rows([17, 9, 4])
    wider, wider_valid = (torch.nn.functional.pad(t, (0, 6)) for t in (tokens[:, :9], valid[:, :9]))
    model = encoder().train()
    assert_close(model(wider, wider_valid), model(tokens[:, :9], valid[:, :9]), rtol=0, atol=1e-10)


def test_dropout_is_one_mask_for_all_tokens():
    layer = S4Layer(64, DiagonalStateSpace(64, "lin", "zoh", 2, None, 0.001, 0.1, Rates()), 0.5)
    torch.nn.init.ones_(layer.skip)
    dropped = layer.dropout(torch.ones(2, 64, 5))
    assert_close(dropped, dropped[..., :1].expand(-1, -1, 5))
    assert 0 < (dropped == 0).sum() < dropped.numel()


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("layers", "dim", "d_state", "copies", "order", "norm", "vocab", "channels", "classes"),
    [
        (8, 128, 64, None, "post", "batch", 17, None, 10),  # v3 ListOps
        (6, 256, 64, None, "pre", "batch", 257, None, 2),  # v3 Text
        (6, 512, 64, 2, "post", "layer", None, 1, 10),  # v3 Image
        (6, 256, 4, 1, "post", "batch", 17, None, 10),  # v4 ListOps
    ],
)
def test_parameters_are_those_of_the_formula(layers, dim, d_state, copies, order, norm, vocab, channels, classes):
    """A layer: Δ and D d each, C 2 directions x d x N/2 complex numbers, S sets of Λ, P, B of N/2 complex numbers,
    the map d -> 2d with its bias, a norm 2d. Outside: the embedding, the final norm of "pre", the head."""
    sets = dim if copies is None else copies
    layer = 2 * dim + 2 * dim * d_state + 3 * sets * d_state + 2 * dim * dim + 2 * dim + 2 * dim
    embedding = vocab * dim if vocab else channels * dim + dim
    final = 2 * dim if order == "pre" else 0
    spec = DataSpec(max_len=64, vocab=vocab, channels=channels, classes=classes)
    model = S4Encoder(spec, dim, layers, d_state=d_state, n_ssm=copies, order=order, norm=norm)
    assert count(model) == layers * layer + embedding + final + dim * classes + classes


def test_counts_of_the_published_sizes():
    """By the formula above, by hand: 8 x 74,496 + 17 x 128 + 1,290 for ListOps of v3."""
    spec = DataSpec(max_len=64, vocab=17, classes=10)
    assert count(S4Encoder(spec, 128, 8, order="post")) == 8 * 74_496 + 2_176 + 1_290 == 599_434
    assert count(S4Encoder(spec, 256, 6, d_state=4, n_ssm=1, order="post")) == 6 * 134_668 + 4_352 + 2_570 == 814_930


@pytest.mark.parametrize("kernel", ["low_rank", "diagonal"])
def test_learns_which_of_two_marks_came_first(kernel):
    """The order of two tokens among others, which a model without order cannot learn."""
    spec = DataSpec(max_len=20, vocab=6, classes=2)
    model = S4Encoder(spec, 16, layers=1, d_state=8, kernel=kernel)
    groups = [{"params": list(model.parameters()), "lr": 0.01}]
    optimizer = torch.optim.AdamW(groups)
    for step in range(150):
        places = torch.rand(64, 20).argsort(1)[:, :2]
        tokens = torch.randint(3, 6, (64, 20)).scatter(1, places, torch.tensor([1, 2]).expand(64, 2))
        target = (places[:, 0] > places[:, 1]).long()
        outputs = model(tokens, None)
        if step > 140:
            assert (outputs.argmax(1) == target).float().mean() > 0.9
        loss = torch.nn.functional.cross_entropy(outputs, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_ssm": 3}, "3 state space models cannot serve 4 channels"),
        ({"dt_min": 0.9}, "choose 0 < dt_min <= dt_max"),
        ({"d_state": 7}, "backbone.d_state is 7; choose an even number"),
    ],
    ids=str,
)
def test_what_it_cannot_be_is_refused(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        S4Encoder(SPEC, 4, **(PLAIN | changes))
