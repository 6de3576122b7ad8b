"""Groups of parameters: their members, and schedules that scale the learning rate of each group."""

import functools

import pytest
import torch
from runs import ROOT  # noqa: F401  before the backbones: makes their shape checks possible
from torch import nn

from subquad.attention.softmax import Softmax
from subquad.backbones.dual_encoder import DualEncoder
from subquad.backbones.s4 import S4Encoder
from subquad.backbones.sequence import SequenceEncoder
from subquad.blocks.parameter_groups import parameter_groups
from subquad.specs import DataSpec, ImageSpec
from subquad.tasks.classification import Classification
from subquad.tasks.image_classification import ImageClassification
from subquad.training import schedules

SPEC = DataSpec(max_len=9, vocab=7, classes=3)
RATES = {"ssm_lr": 0.001, "dt_lr": 0.002, "c_lr": 0.003}


def module(network):
    optimizer = functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.05)
    return Classification(SPEC, network, optimizer, functools.partial(schedules.warmup_cosine, warmup=2))


def rates(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, tuple[float, float]]:
    """The learning rate and weight decay of every parameter by name; each is in exactly one group."""
    names = {id(p): name for name, p in network.named_parameters()}
    settings = [
        (names[id(p)], (group["lr"], group["weight_decay"]))
        for group in optimizer.param_groups
        for p in group["params"]
    ]
    assert len(settings) == len(dict(settings)) == len(names)
    return dict(settings)


def s4(**rates):
    return functools.partial(S4Encoder, dim=4, layers=2, d_state=4, **rates)


def test_every_parameter_of_s4_has_its_rate_and_decay():
    model = module(s4(**RATES))
    settings = rates(model.network, model.make_optimizer(model.optimized()))
    own = {"log_dt": (0.002, 0), "c": (0.003, 0.05)} | dict.fromkeys(("log_decay", "frequency", "b", "p"), (0.001, 0))
    plain = {"skip": (0.01, 0.05), "out.weight": (0.01, 0.05), "out.bias": (0.01, 0)}
    for layer in (0, 1):
        for name, want in own.items():
            assert settings.pop(f"blocks.{layer}.layer.kernel.{name}") == want
        for name, want in plain.items():
            assert settings.pop(f"blocks.{layer}.layer.{name}") == want
        for name in ("weight", "bias"):
            assert settings.pop(f"blocks.{layer}.norm.{name}") == (0.01, 0)
    undecayed = dict.fromkeys(("embed.weight", "norm.weight", "norm.bias", "head.bias"), (0.01, 0))
    assert settings == undecayed | {"head.weight": (0.01, 0.05)}


def test_rates_that_are_not_given_are_the_optimisers():
    model = module(s4())
    settings = rates(model.network, model.make_optimizer(model.optimized()))
    assert {lr for lr, _ in settings.values()} == {0.01}
    assert settings["blocks.0.layer.kernel.log_dt"] == (0.01, 0)
    assert settings["blocks.0.layer.kernel.c"] == (0.01, 0.05)


def test_dual_encoder_group_as_their_encoder_does():
    towers = DualEncoder(SPEC, s4(**RATES), head_hidden=5)
    settings = rates(towers, torch.optim.AdamW(parameter_groups(towers), lr=0.01, weight_decay=0.05))
    assert settings["tower.blocks.0.layer.kernel.b"] == (0.001, 0)
    assert settings["head.0.bias"] == (0.01, 0)
    assert settings["head.0.weight"] == (0.01, 0.05)
    transformer = functools.partial(SequenceEncoder, attention=Softmax, layers=1, dim=4, heads=1, ffn=4)
    [group] = parameter_groups(DualEncoder(SPEC, transformer))
    assert set(group) == {"params"}
    assert len(group["params"]) == len(list(DualEncoder(SPEC, transformer).parameters()))


def test_an_encoder_of_patches_keeps_its_groups():
    spec = ImageSpec(side=4, channels=1, classes=3)
    model = ImageClassification(spec, s4(**RATES), torch.optim.AdamW, schedules.constant, patch=2)
    settings = rates(model.network, torch.optim.AdamW(model.optimized(), lr=0.01, weight_decay=0.05))
    assert settings["encoder.blocks.0.layer.kernel.b"] == (0.001, 0)
    assert settings["encoder.blocks.0.layer.skip"] == (0.01, 0.05)


def test_a_network_without_groups_is_given_as_it_is():
    transformer = functools.partial(SequenceEncoder, attention=Softmax, layers=1, dim=4, heads=1, ffn=4)
    model = module(transformer)
    [group] = model.make_optimizer(model.optimized()).param_groups
    assert group["weight_decay"] == 0.05
    assert len(group["params"]) == len(list(model.parameters()))


def test_shared_parameters_are_in_one_group():
    network = s4()(SPEC)
    network.again = nn.Linear(4, 3)
    network.again.weight = network.head.weight
    assert sum(len(group["params"]) for group in parameter_groups(network)) == len(list(network.parameters()))


@pytest.mark.parametrize(
    ("schedule", "settings"),
    [
        (schedules.constant, {}),
        (schedules.inverse_sqrt, {"warmup": 2}),
        (schedules.warmup_cosine, {"warmup": 2}),
        (schedules.warmup_linear, {"warmup": 2}),
        (schedules.one_cycle, {"warmup": 2}),
        (schedules.staircase, {"epochs": 3, "warmup": 1, "drops": [2], "gamma": 0.5}),
        (schedules.epoch_cosine, {"epochs": 3, "warmup_epochs": 1, "start_lr": 1e-4, "final_lr": 1e-3}),
    ],
)
def test_schedules_multiply_the_rate_of_each_group(schedule, settings):
    one, other = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [one]}, {"params": [other], "lr": 0.02}], lr=0.1)
    scheduler = schedule(optimizer, total_steps=6, **settings)
    for step in range(6):
        first, second = (group["lr"] for group in optimizer.param_groups)
        assert second == pytest.approx(first / 5, abs=1e-12)
        optimizer.step()
        if step < 5:
            scheduler.step()
