"""The contract of `StandaloneEncoder`, for every configs/backbone/*.yaml that takes no attention."""

import copy
from typing import Any

import pytest
import torch
from attention.cells import prefix
from conftest import encoder_factories, own_attentions
from torch import Tensor
from torch.testing import assert_close

from subquad.backbones.encoder import EncoderFactory, StandaloneEncoder, is_standalone, sized
from subquad.measure.cuda_autocast import rules_of_cuda
from subquad.specs import DataSpec
from subquad.utils.compiling import compile_network
from subquad.utils.errors import UserError

LONGEST = 13
TOKENS = DataSpec(max_len=LONGEST, vocab=9, classes=5)
SERIES = DataSpec(max_len=LONGEST, channels=3)
SMALL = {"segment": 4, "latents": 3, "layers": 2, "d_state": 8, "d_p": 5}
"""Sizes that cut 13 tokens into four segments, or compress them to five, in place of the configured ones."""

exactly = {"rtol": 0, "atol": 1e-10}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "factory" in metafunc.fixturenames:
        results = own_attentions(metafunc.config) or encoder_factories()
        results = {name: factory for name, factory in results.items() if is_standalone(factory)}
        metafunc.parametrize("factory", results.values(), ids=results)
    if "spec" in metafunc.fixturenames:
        metafunc.parametrize("spec", [TOKENS, SERIES], ids=["tokens", "series"])


def built(factory: EncoderFactory, spec: DataSpec = TOKENS, **changes: Any) -> StandaloneEncoder:
    keys = getattr(factory, "keywords", {})
    own = {key: n for key, n in SMALL.items() if key in keys}
    sizes = {"dim": 24, "heads": 4, "ffn": 20, "dropout": 0.0, "attention_dropout": 0.0}
    return sized(factory, **(sizes | own | changes))(spec=spec).double()


def batch(spec: DataSpec, lengths: tuple[int, ...] = (13, 9, 1), size: int = LONGEST) -> tuple[Tensor, Tensor]:
    """Inputs and mask; segments without padding, with some, and of padding only."""
    valid = prefix(list(lengths), size)
    if spec.vocab is not None:
        return torch.randint(1, spec.vocab, valid.shape).masked_fill(~valid, 0), valid
    return torch.randn(*valid.shape, spec.channels, dtype=torch.float64).masked_fill(~valid[..., None], 0), valid


def test_configured_sizes_run(factory: EncoderFactory) -> None:
    assert factory(spec=TOKENS)(*batch(TOKENS)).shape == (3, 5)


def test_padding_is_invisible(factory: EncoderFactory, spec: DataSpec) -> None:
    model, (inputs, valid) = built(factory, spec).eval(), batch(spec)
    if spec.vocab is None:
        poisoned = torch.where(valid[..., None], inputs, 1e3)
    else:
        poisoned = torch.where(valid, inputs, torch.randint_like(inputs, 1, spec.vocab))
    assert_close(model(poisoned, valid), model(inputs, valid), **exactly)


def test_padded_equals_trimmed(factory: EncoderFactory, spec: DataSpec) -> None:
    model, (inputs, valid) = built(factory, spec).eval(), batch(spec)
    whole = model(inputs, valid)
    for i, n in enumerate(valid.sum(1)):
        assert_close(model(inputs[i : i + 1, :n], None), whole[i : i + 1], **exactly)


@pytest.mark.parametrize("holes", [(0, 1, 2, 3), (4, 5, 6, 7), (0, 5, 9, 10, 11, 12)], ids=str)
def test_padding_may_be_anywhere(factory: EncoderFactory, spec: DataSpec, holes: tuple[int, ...]) -> None:
    model, (inputs, valid) = built(factory, spec).eval(), batch(spec, (13, 13))
    valid[0, list(holes)] = False
    poisoned = inputs.clone()
    poisoned[0, list(holes)] = 5
    assert_close(model(poisoned, valid), model(inputs, valid), **exactly)


def test_mask_of_true_equals_no_mask(factory: EncoderFactory, spec: DataSpec) -> None:
    model = built(factory, spec).eval()
    for length in (1, 3, 8, LONGEST):
        inputs, valid = batch(spec, (length, length), length)
        assert_close(model(inputs, valid), model(inputs, None), **exactly)


def test_rows_are_independent(factory: EncoderFactory, spec: DataSpec) -> None:
    model, (inputs, valid) = built(factory, spec).eval(), batch(spec)
    alone = [model(inputs[i : i + 1], valid[i : i + 1]) for i in range(3)]
    assert_close(model(inputs, valid), torch.cat(alone), **exactly)


@pytest.mark.parametrize("lengths", [(0, 0, 0), (LONGEST, 0, 4)], ids=str)
def test_rows_of_padding_stay_finite(factory: EncoderFactory, spec: DataSpec, lengths: tuple[int, ...]) -> None:
    model, (inputs, valid) = built(factory, spec), batch(spec, lengths)
    out = model(inputs, valid)
    out.square().sum().backward()
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_eval_is_deterministic_and_changes_nothing(factory: EncoderFactory) -> None:
    model, inputs = built(factory, dropout=0.5).eval(), batch(TOKENS)
    before = copy.deepcopy(model.state_dict())
    assert_close(model(*inputs), model(*inputs), rtol=0, atol=0)
    assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    plain = built(factory).eval()
    plain.load_state_dict(model.state_dict())
    assert_close(plain(*inputs), model(*inputs), rtol=0, atol=0)
    assert not torch.equal(model.train()(*inputs), model(*inputs))


def test_state_dict_is_all_there_is(factory: EncoderFactory) -> None:
    """After a training step, a new copy with the state dict continues identically on new data."""
    trained = built(factory, dropout=0.2)
    trained(*batch(TOKENS)).square().mean().backward()
    torch.optim.SGD(trained.parameters(), lr=1e-3).step()
    fresh = built(factory, dropout=0.2)
    fresh.load_state_dict(trained.state_dict())
    inputs = batch(TOKENS)
    for mode in (True, False):
        outputs = []
        for model in (trained, fresh):
            torch.manual_seed(1)
            outputs.append(model.train(mode)(*inputs))
        assert_close(*outputs, rtol=0, atol=0)


def test_every_parameter_learns(factory: EncoderFactory, spec: DataSpec) -> None:
    model = built(factory, spec)
    out = model(*batch(spec))
    (out * torch.randn_like(out)).sum().backward()
    least = {name: 1e-9 if p.ndim > 1 else 0 for name, p in model.named_parameters()}
    dead = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > least[name]]
    assert dead == []


@pytest.mark.parametrize("length", [1, 2, 4, 5, 8])
def test_shorter_sequences_work(factory: EncoderFactory, spec: DataSpec, length: int) -> None:
    out = built(factory, spec)(batch(spec, (length,) * 2, length)[0], None)
    assert out.shape == (2, spec.outputs)
    assert out.isfinite().all()


def test_longer_sequences_are_refused(factory: EncoderFactory) -> None:
    model = built(factory)
    with pytest.raises(UserError, match=f"{type(model).__name__} .*{LONGEST} tokens .* {LONGEST + 1}"):
        model(torch.ones(1, LONGEST + 1, dtype=torch.int64), None)


def test_weights_do_not_depend_on_the_length(factory: EncoderFactory) -> None:
    """A model is trained on short sequences and evaluated on long ones by loading its weights (BLRP, Table 5)."""
    short, inputs = built(factory).eval(), batch(TOKENS)
    long = built(factory, DataSpec(max_len=4 * LONGEST, vocab=9, classes=5)).eval()
    long.load_state_dict(short.state_dict())
    assert_close(long(*inputs), short(*inputs), **exactly)
    assert long(torch.ones(1, 4 * LONGEST, dtype=torch.int64), None).isfinite().all()


def test_gradients_are_those_of_the_function(factory: EncoderFactory) -> None:
    model, (inputs, valid) = built(factory, SERIES, dim=8, heads=2, ffn=6).eval(), batch(SERIES, (9, 3), 9)
    assert torch.autograd.gradcheck(lambda x: model(x, valid), inputs.requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("mixed", [False, True], ids=["bf16", "bf16-mixed"])
def test_bf16_stays_close(factory: EncoderFactory, spec: DataSpec, mixed: bool) -> None:
    model, (inputs, valid) = built(factory, spec, head_hidden=None).eval().float(), batch(spec)
    inputs = inputs if spec.vocab else inputs.float()
    exact = model(inputs, valid)
    low = torch.float32 if mixed else torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        close = model.to(low)(inputs if spec.vocab else inputs.to(low), valid).float()
    assert close.isfinite().all()
    assert (close - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_mixed_precision_of_a_gpu_stays_finite(factory: EncoderFactory, half: torch.dtype) -> None:
    """In training with dropout."""
    model, inputs = built(factory, dropout=0.2, attention_dropout=0.2).float(), batch(TOKENS)
    with rules_of_cuda(), torch.autocast("cpu", half):
        scores = model(*inputs)
    scores.float().square().mean().backward()
    assert scores.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, of a Function
def test_compiles_to_one_graph(factory: EncoderFactory) -> None:
    torch.compiler.reset()
    model, inputs = built(factory).eval(), batch(TOKENS)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(*inputs), model(*inputs), **exactly)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:.*should not be instantiated")
@pytest.mark.parametrize("mixed", [False, pytest.param(True, marks=pytest.mark.release)], ids=["float64", "bfloat16"])
def test_compiled_training_has_the_same_gradients(factory: EncoderFactory, mixed: bool) -> None:
    """As in tests/attention/test_inductor.py."""
    torch.compiler.reset()
    model, inputs = built(factory), batch(TOKENS)
    model = model.float() if mixed else model
    results = []
    for compiled in (False, True):
        if compiled:
            compile_network(model, backend="aot_eager_decomp_partition")
        model.zero_grad()
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            scores = model(*inputs)
        scores.to(torch.float32 if mixed else torch.float64).square().sum().backward()
        results.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    close = 0.1 if mixed else 1e-8
    for name, gradient in results[0].items():
        assert (results[1][name] - gradient).norm() <= close * gradient.norm() + 1e-3 * close, name
