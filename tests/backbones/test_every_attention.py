"""Every attention inside the published architectures, small images: trained, and compiled to one graph."""

from functools import partial

import pytest
import torch
from attention.cells import first_of_each_class
from conftest import made, mechanisms

from subquad.attention.base import StatelessAttention
from subquad.attention.dba import DBA
from subquad.attention.ecoformer import EcoFormer
from subquad.backbones.encoder import class_of
from subquad.backbones.sequence import SequenceEncoder
from subquad.backbones.vision import Pyramid, ViT
from subquad.specs import DataSpec, ImageSpec

SPEC = ImageSpec(side=64, channels=3, classes=7)
TINY = {"layers": 2, "dim": 32, "heads": 4, "ffn": 48, "patch": 16, "class_token": True}


def factory(name):
    """The configured attention, with scales for a single head too, as in the first stage of PVTv2."""
    configured = made("attention", name)
    return partial(configured, scales=2) if configured.keywords.get("scales", 0) is None else configured


def pvt(attention):
    return Pyramid(SPEC, attention, attention, "pvt_v2_b0", stages=(1, 2, 3, 4))


def twins(attention):
    return Pyramid(SPEC, attention, attention, "twins_svt_small", stages=(1, 2, 3, 4))


def deit(attention):
    return ViT(SPEC, attention, layers=2, dim=192, heads=3, ffn=192, patch=16, class_token=True)


def deit_with_a_grid(attention):
    return ViT(SPEC, attention, layers=2, dim=192, heads=3, ffn=192, patch=16)


def sequence(attention):
    return SequenceEncoder(DataSpec(max_len=24, vocab=11, classes=7), attention, layers=2, dim=32, heads=4, ffn=48)


MODELS = {"pvt_v2_b0": pvt, "deit_tiny": deit, "vit": deit_with_a_grid, "sequence": sequence}


def inputs(model):
    if isinstance(model, SequenceEncoder):
        valid = torch.arange(24) < torch.tensor([[24], [9]])
        return torch.randint(1, 11, (2, 24)) * valid, valid
    return (torch.randn(2, 3, 64, 64),)


def check_learns(model):
    scores = model(*inputs(model))
    assert scores.shape == (2, 7)
    assert scores.isfinite().all()
    scores.logsumexp(1).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    # Parameters that only a later layer or a longer row would use may have none.
    assert sum(grad is None for grad in grads.values()) < 0.1 * len(grads)
    assert all(grad.isfinite().all() for grad in grads.values() if grad is not None)


FIRST = first_of_each_class({name: made("attention", name) for name in mechanisms()})
"""One choice of each class: continuous integration runs these, a release all."""

CARRYING = [name for name in FIRST if not issubclass(class_of(made("attention", name)), StatelessAttention)]
each_carry = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.release] * (name not in ("softmax", *CARRYING))) for name in mechanisms()],
)
"""test_inductor.py and test_export.py compile the layers of all; models differ from them by what layers pass on.

The two pyramids differ in their layers without attention."""


def marks(model, name):
    """By default one choice of each class is trained, in two models."""
    if name not in FIRST:
        return [pytest.mark.release]
    return [pytest.mark.slow] * (model not in ("vit", "sequence"))


@pytest.mark.parametrize(
    ("model", "name"),
    [pytest.param(model, name, marks=marks(model, name)) for model in MODELS for name in mechanisms()],
)
def test_it_learns(model, name):
    check_learns(MODELS[model](factory(name)))


@pytest.mark.slow
@each_carry
def test_it_learns_in_twins(name):
    check_learns(twins(factory(name)))


SMALLER = {
    "vit with a class token": lambda attention: ViT(SPEC, attention, **TINY),
    "vit": lambda attention: ViT(SPEC, attention, **TINY | {"class_token": False}),
    "sequence": sequence,
}


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, of a Function
@each_carry
def test_a_model_compiles_to_one_graph(name):
    """A second pass, with a carry where there is one, takes the graph of the first."""
    for make in (SMALLER["vit with a class token"], sequence):
        check_one_graph(make(factory(name)).eval())


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@each_carry
def test_a_pyramid_compiles_to_one_graph(name):
    check_one_graph(pvt(factory(name)).eval())


def check_one_graph(model):
    torch.compiler.reset()
    given = inputs(model)
    expected = [model(*given), model(*reversed_rows(given))]
    graphs = []

    def counted(graph, example):
        graphs.append(graph)
        return graph

    model.compile(backend=counted, fullgraph=True)
    for rows, wanted in zip((given, reversed_rows(given), given), (*expected, expected[0]), strict=True):
        torch.testing.assert_close(model(*rows), wanted)
    assert len(graphs) == 1


def reversed_rows(given):
    return tuple(tensor.flip(0) for tensor in given)


@pytest.mark.release
@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # inside torch
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("attention", [partial(DBA, d_p=4, d_in=8), EcoFormer], ids=["dba", "ecoformer"])
def test_inductor_trains_to_the_same_gradients(attention):
    torch.compiler.reset()
    model = SMALLER["vit"](attention)
    images = torch.randn(2, 3, 64, 64)
    gradients = []
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        scores = model(images)
        scores.logsumexp(1).sum().backward()
        gradients.append([scores.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
        model.compile(fullgraph=True)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)
