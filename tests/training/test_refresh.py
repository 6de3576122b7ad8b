"""The callback that refreshes attention mechanisms: its inputs, its schedule, and that it changes nothing else."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hydra.utils import instantiate
from runs import composed  # before the backbones: makes their shape checks possible
from torch import nn
from torch.testing import assert_close

from subquad.attention.base import Redrawn, Refreshable, StatelessAttention
from subquad.backbones.mvts import MVTSEncoder
from subquad.data.batches import Rows
from subquad.data.microbatches import cut
from subquad.data.split_data import SplitData
from subquad.measure.inputs import random_batch
from subquad.planning.model_size import spec_of
from subquad.specs import DataSpec, Pattern, SequenceBatch
from subquad.tasks.classification import Classification
from subquad.training.callbacks.guards import SeedEpochs
from subquad.training.callbacks.refresh import RefreshAttention, _refresh
from subquad.training.schedules import constant

SPEC = DataSpec(max_len=12, channels=3, classes=4)


class Fitted(StatelessAttention, Refreshable):
    """Adds a random vector, redrawn every `redraw` steps, and stores the inputs of its last refresh."""

    patterns = frozenset(Pattern)
    complexity = "time O(n d), memory O(n d)"

    def __init__(self, site, redraw: int = 2) -> None:
        super().__init__(site)
        self.interval = redraw
        self.register_buffer("direction", torch.randn(site.dim))
        self.register_buffer("renewals", torch.tensor(0))
        self.value = nn.Linear(site.dim, site.dim)

    def attend(self, x, context, masks):
        return self.value(context) + self.direction

    def due(self, epoch: int, batch: int, step: int) -> bool:
        return step % self.interval == 0

    def refresh(self, x, context, masks) -> None:
        assert not torch.is_grad_enabled()
        self.given = x, context, masks
        self.direction.copy_(torch.randn_like(self.direction))
        self.renewals += 1


def module(redraw=(2, 2), **choices):
    sites = iter(redraw)
    encoder = partial(
        MVTSEncoder, attention=lambda site: Fitted(site, next(sites)), layers=len(redraw), dim=16, heads=2, ffn=32,
        dropout=0.3, norm="batch",
    )  # fmt: skip
    return Classification(SPEC, encoder, torch.optim.Adam, constant, **choices)


def batch():
    valid = torch.arange(12) < torch.randint(4, 13, (6, 1))
    return SequenceBatch(torch.randn(6, 12, 3) * valid[..., None], valid, torch.randint(0, 4, (6,)))


def trainer(step=0, **changes):
    facts = {
        "current_epoch": 0, "global_step": step, "is_global_zero": True, "world_size": 1, "datamodule": None,
        "callbacks": [], "strategy": SimpleNamespace(broadcast=lambda value: value),
    }  # fmt: skip
    return SimpleNamespace(**facts | changes)


def attentions(model):
    return [part for part in model.modules() if isinstance(part, Fitted)]


def renew(facts, model, rows, number):
    callback = RefreshAttention()
    callback.on_train_start(facts, model)
    callback.on_train_batch_start(facts, model, rows, number)


def start(model, rows, step=0, **changes):
    renew(trainer(step, **changes), model, rows, 0)


def test_those_that_are_due_are_renewed_and_no_others() -> None:
    model, rows = module((2, 3)), batch()
    for step in range(7):
        start(model, rows, step)
    assert [attention.renewals.item() for attention in attentions(model)] == [4, 3]


def test_each_is_given_what_forward_would_be_after_the_layers_before_it_were_renewed() -> None:
    model, rows = module(), batch()
    for norm in (part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)):
        norm.running_mean.normal_()
    start(model, rows)
    model.train()
    for dropout in (part for part in model.modules() if isinstance(part, nn.Dropout)):
        dropout.p = 0.0
    seen = []
    for attention in attentions(model):
        attention.register_forward_pre_hook(lambda attention, args: seen.append(args))
    model(rows)
    for attention, (x, context, masks, *_) in zip(attentions(model), seen, strict=True):
        assert_close(attention.given[:2], (x, context))
        assert torch.equal(attention.given[2].context, masks.context)


def test_nothing_but_the_buffers_of_the_renewed_changes() -> None:
    model, rows = module(), batch()
    model(rows)  # changes the running statistics
    frozen = next(part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm))
    frozen.eval()
    modes = [part.training for part in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    start(model, rows)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))
    assert [part.training for part in model.modules()] == modes
    changed = {
        name.split(".")[-1] for name, value in model.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed == {"direction", "renewals"}
    assert all(p.grad is None for p in model.parameters())
    model(rows)
    assert [attention.renewals.item() for attention in attentions(model)] == [1, 1]  # the hooks have been removed


def test_every_renewal_draws_anew_even_if_nothing_else_is_random() -> None:
    model, rows, seen = module((1, 1)), batch(), []
    for step in (0, 1, 0):
        start(model, rows, step)
        seen += [attention.direction.clone() for attention in attentions(model)]
    assert len(torch.stack(seen[:4]).unique(dim=0)) == 4
    assert torch.equal(seen[0], seen[4])


@pytest.mark.parametrize("parts", [1, 2])
def test_an_epoch_is_a_pass_over_the_training_rows_whatever_the_validation_interval(parts) -> None:
    """A pass has 7 batches and validation runs after every 3: batch 16 is the third batch of the third pass."""
    model, rows, asked = module((100, 100)), batch(), []
    attentions(model)[0].due = lambda *place: bool(asked.append(place))
    rows13 = {"train": range(13)}
    data = SimpleNamespace(steps_per_epoch=3, batch_size=2, splits=rows13)
    data.place = partial(SplitData.place, data)
    facts = trainer(16, current_epoch=5, accumulate_grad_batches=parts, datamodule=SimpleNamespace(data=data))
    given = rows if parts == 1 else cut(rows, Rows(list(range(6)), place=16), parts)[0]
    renew(facts, model, given, 1 * parts)
    assert asked == [(2, 2, 16)]


def test_weights_shared_by_layers_are_renewed_once() -> None:
    model, rows = module(), batch()
    first, second = (part for part in model.modules() if hasattr(part, "attention"))
    second.attention = first.attention
    start(model, rows)
    assert first.attention.renewals == 1


def test_a_failure_leaves_the_model_as_it_was() -> None:
    model, rows = module(), batch()
    attentions(model)[1].refresh = lambda *_: (_ for _ in ()).throw(RuntimeError("no fit"))
    with pytest.raises(RuntimeError, match="no fit"):
        start(model, rows)
    assert all(part.training for part in model.modules())
    del attentions(model)[1].refresh
    model(rows)
    assert attentions(model)[1].renewals == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.slow
def test_a_compiled_model_is_renewed_and_computes_with_what_is_new() -> None:
    torch.compiler.reset()
    model, rows = module(), batch()
    model.eval()
    model.network.compile(backend="eager")
    first = model(rows)
    start(model, rows)
    assert [attention.renewals.item() for attention in attentions(model)] == [1, 1]
    assert not torch.allclose(model(rows), first)
    assert_close(model(rows), model.network.forward(rows.inputs, rows.valid))


def test_other_processes_take_the_buffers_of_the_first() -> None:
    first, other, rows = module(), module(), batch()
    sent = []
    seeds = [SeedEpochs(0)]
    strategy = SimpleNamespace(broadcast=lambda buffers: sent.append(buffers) or buffers)
    start(first, rows, world_size=2, strategy=strategy, callbacks=seeds)
    strategy = SimpleNamespace(broadcast=lambda buffers: sent[0])
    start(other, batch(), world_size=2, is_global_zero=False, strategy=strategy, callbacks=seeds)
    for a, b in zip(attentions(first), attentions(other), strict=True):
        assert torch.equal(a.direction, b.direction)
        assert a.renewals == b.renewals == 1


SIZES = ("backbone.layers=2", "backbone.dim=16", "backbone.heads=2", "data=synthetic", "scale=smoke", "trainer=cpu")
MODELS = [
    ("task=lra/text", *SIZES),
    ("task=lra/retrieval", *SIZES),
    ("task=uea/heartbeat", *SIZES),
    ("task=mlm/text", *SIZES),
    ("task=vqa_v2", "data=synthetic", "scale=smoke", "trainer=cpu"),
    ("task=digits", "scale=smoke", "trainer=cpu"),
    ("task=cifar/cifar100", "backbone=twins_svt", "data=synthetic", "scale=smoke", "trainer=cpu"),
]
STEP = 1000
"""A step before which both Performer and YOSO are redrawn."""


def built(data, outputs, *overrides):
    config = composed(data, outputs, *overrides)
    spec = spec_of(config.data, prepare=True)
    torch.manual_seed(3)
    return instantiate(config.task.module, _convert_="all")(spec=spec), spec


def buffers(model):
    return {
        f"{name}.{key}": value.clone()
        for name, part in model.named_modules()
        if isinstance(part, Redrawn)
        for key, value in part.named_buffers()
    }


def seeded(rank, model):
    """The facts of the trainer of a process, whose generators are seeded as in training."""
    seeds = SeedEpochs(7)
    facts = trainer(STEP, current_epoch=2, world_size=2, global_rank=rank, callbacks=[seeds], strategy=None)
    seeds.on_train_epoch_start(facts, model)
    return facts


@pytest.mark.parametrize("overrides", MODELS, ids=lambda words: " ".join(words[:2]))
@pytest.mark.parametrize("attention", ["performer", "yoso_sampled"])
@pytest.mark.slow
def test_redrawing_reads_no_batch_and_draws_in_every_process_what_a_pass_draws(attention, overrides, data, outputs):
    """The strategy of no process has a broadcast."""
    model, spec = built(data, outputs, *overrides, f"attention={attention}")
    initial = buffers(model)
    seeded(0, model)
    due = [part for part in model.modules() if isinstance(part, Redrawn)]
    _refresh(due, model, random_batch(model.network, spec, 2), torch.initial_seed() + STEP + 1)
    expected = buffers(model)
    assert len(expected) > 1
    assert not any(torch.equal(value, initial[name]) for name, value in expected.items())
    for rank in (0, 1):
        model, _ = built(data, outputs, *overrides, f"attention={attention}")
        facts = seeded(rank, model)
        state = torch.get_rng_state()
        renew(facts, model, None, 0)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(value, expected[name]) for name, value in buffers(model).items())


def test_the_pass_refreshes_redrawn_mechanisms_too_if_others_are_due() -> None:
    class Drawn(Fitted, Redrawn):
        refresh = Redrawn.refresh

        def redraw(self) -> None:
            self.renewals += 1

    model, rows = module(), batch()
    first, second = attentions(model)
    first.__class__ = Drawn
    start(model, rows)
    assert [first.renewals.item(), second.renewals.item()] == [1, 1]
    assert second.given[0].shape[0] == len(rows)
    assert not hasattr(first, "given")
