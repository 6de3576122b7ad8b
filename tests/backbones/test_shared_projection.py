"""One projection for all layers of a language model: training, checkpoints, compilation, several processes."""

import copy
import functools

import pytest
import torch
from runs import ROOT  # noqa: F401  before the backbones: makes their shape checks possible
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from subquad.attention.linformer import Linformer
from subquad.backbones.language import LanguageClassifier, LanguageModel
from subquad.specs import TextSpec
from subquad.tasks.masked_language_model import MaskedLanguageModel
from subquad.training.schedules import constant
from subquad.utils.errors import UserError

SPEC = TextSpec(max_len=12, vocab=30, tokenizer="ab")
SIZES = {"layers": 3, "dim": 16, "heads": 2, "ffn": 24, "dropout": 0.0, "attention_dropout": 0.0}
SHARED = "encoder.layers.0.attention.key_map.0"


def factory(sharing="layer"):
    return functools.partial(Linformer, k=4, sharing=sharing)


def model(sharing="layer"):
    return LanguageModel(SPEC, factory(sharing), **SIZES).double()


def batch():
    valid = torch.arange(12) < torch.tensor([12, 7, 1])[:, None]
    tokens = torch.randint(1, 30, (3, 12)).masked_fill(~valid, 0)
    return tokens, valid, valid.nonzero()


def step(network):
    network(*batch()).square().sum().backward()


def test_its_gradient_is_the_sum_over_layers():
    """Against a model that has the same numbers three times, one copy a layer."""
    shared, own = model(), model("kv")
    own.load_state_dict(shared.state_dict(), strict=False)
    for layer in own.encoder.layers:
        layer.attention.key_map[0].data = shared.get_parameter(SHARED).data.clone()
    inputs = batch()
    for network in (shared, own):
        network(*inputs).square().sum().backward()
    parts = [layer.attention.key_map[0].grad for layer in own.encoder.layers]
    assert all(part.abs().max() > 1e-9 for part in parts)
    torch.testing.assert_close(shared.get_parameter(SHARED).grad, sum(parts))


def test_a_checkpoint_holds_it_once_and_brings_it_back():
    network, fresh, inputs = model(), model(), batch()
    state = network.state_dict()
    assert [name for name in state if "_map" in name] == [SHARED]
    assert not torch.equal(network(*inputs), fresh(*inputs))
    fresh.load_state_dict(state)
    assert torch.equal(network(*inputs), fresh(*inputs))
    clone = copy.deepcopy(network)
    clone.get_parameter(SHARED).data.zero_()
    assert not torch.equal(clone(*inputs), network(*inputs))


@pytest.mark.parametrize(("given", "asked"), [("headwise", "kv"), ("kv", "headwise"), ("kv", "layer"), ("layer", "kv")])
def test_weights_of_another_sharing_are_refused(given, asked):
    """E and F of one run must not load as E alone of another, or the reverse."""
    with pytest.raises(UserError, match="use the attention, the recipe's sizes"):
        model(asked).adapt_state_dict(model(given).state_dict())


def test_the_optimiser_moves_it_once():
    backbone = functools.partial(LanguageModel, attention=factory(), **SIZES)
    module = MaskedLanguageModel(SPEC, backbone, functools.partial(torch.optim.SGD, lr=0.5), constant)
    optimizer = module.make_optimizer(module.optimized())
    shared = module.network.get_parameter(SHARED)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert sum(p is shared for p in held) == 1
    assert len(held) == len({id(p) for p in held})
    step(module.network)
    before = shared.detach().clone()
    optimizer.step()
    torch.testing.assert_close(shared.detach(), before - 0.5 * shared.grad)


def test_fine_tuning_takes_it_over():
    source = model()
    target = LanguageClassifier(TextSpec(max_len=12, vocab=30, classes=3, tokenizer="ab"), factory(), **SIZES).double()
    target.load_state_dict(target.adapt_state_dict(source.state_dict()))
    tokens, valid, _ = batch()
    assert torch.equal(target.encoder(tokens, valid), source.encoder(tokens, valid))
    target(tokens, valid).square().sum().backward()
    assert target.get_parameter(SHARED).grad.any()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, of a Function
def test_it_compiles_with_its_gradient():
    """The encoder in one graph: one layer owns the map, and the others get it as an argument."""
    torch.compiler.reset()
    plain = model().encoder
    other = copy.deepcopy(plain)
    tokens, valid, _ = batch()
    outputs = []
    for network in (plain, torch.compile(other, backend="aot_eager", fullgraph=True)):
        outputs.append(network(tokens, valid))
        outputs[-1].square().sum().backward()
    torch.testing.assert_close(*outputs)
    name = SHARED.removeprefix("encoder.")
    torch.testing.assert_close(plain.get_parameter(name).grad, other.get_parameter(name).grad)


def gradients_alone_and_distributed():
    """Of the shared projection, after two steps of a model and of a copy under DistributedDataParallel."""
    alone = model()
    together = DistributedDataParallel(copy.deepcopy(alone))
    inputs = batch()
    for _ in range(2):
        for network in (alone, together):
            network(*inputs).square().sum().backward()
    return alone.get_parameter(SHARED).grad, together.module.get_parameter(SHARED).grad


def test_no_process_waits_for_a_gradient_that_never_comes(tmp_path):
    """DistributedDataParallel refuses a second step after one that left a parameter without a gradient."""
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        # The wrapper ends inside the call: where it outlives the group, it joins the group's threads while holding the
        # interpreter's lock, which one of them may wait for.
        alone, together = gradients_alone_and_distributed()
        torch.testing.assert_close(together, alone)
    finally:
        distributed.destroy_process_group()
