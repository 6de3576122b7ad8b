"""What `from subquad import ...` offers: every attention, cheap to import, with an example that runs."""

import doctest
import functools
import inspect
import re
import subprocess
import sys

import pytest
import torch
from conftest import CONFIGS, made, mechanisms
from hydra import compose, initialize_config_dir
from torch import nn

import subquad
from subquad import Attention, Masks, UserError
from subquad.backbones.encoder import class_of
from subquad.specs import SITE_SETTINGS

CLASSES = [name for name in subquad.__all__ if isinstance(getattr(subquad, name), type)]
ATTENTIONS = [name for name in CLASSES if getattr(getattr(subquad, name), "complexity", None)]


def test_every_class_of_the_configurations_is_public():
    classes = {class_of(made("attention", name)) for name in mechanisms()}
    assert {getattr(subquad, cls.__name__) for cls in classes} == classes
    assert {cls.__name__ for cls in classes} == set(ATTENTIONS)


def test_import_loads_nothing_heavy():
    code = (
        "import sys, subquad; subquad.__version__; from subquad import records; "
        "print([name for name in ('torch', 'hydra', 'timm', 'jaxtyping') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_attention_loads_neither_hydra_nor_lightning():
    code = (
        "import sys; from subquad import DBA; "
        "print([name for name in ('hydra', 'pytorch_lightning', 'timm', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_names_are_attribute_errors():
    assert not hasattr(subquad, "Nonsense")
    assert {*CLASSES, "__version__"} <= set(dir(subquad))
    assert subquad.__version__.count(".") == 2


@pytest.mark.parametrize("name", subquad.__all__)
def test_the_examples_of_docstrings_run(name):
    public = getattr(subquad, name)
    [test] = doctest.DocTestFinder(recurse=False).find(public, name, globs={})
    assert test.examples or inspect.isabstract(public), "no paragraph `Examples:` in the docstring"
    results = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=results.append)
    assert results == []


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_plain_layer_is_the_layer_of_a_site(name):
    public = getattr(subquad, name)
    assert not set(inspect.signature(public).parameters) & set(SITE_SETTINGS)
    for pattern in public.patterns:
        layer = public(dim=8, heads=2, max_len=12, context_len=12, pattern=pattern.value).eval()
        x, context = torch.randn(2, 12, 8), torch.randn(2, 12, 8)
        mask = torch.arange(12) < torch.tensor([[7], [12]])
        if pattern.value == "self":
            assert torch.equal(layer(x, mask=mask), layer(x, x, Masks(mask, mask))[0])
        else:
            expected, _ = layer(x, context, Masks(None, mask))
            assert torch.equal(layer(x, context, context_mask=mask), expected)


DBA, X, MASK = subquad.DBA(dim=8, heads=2, max_len=4), torch.ones(1, 4, 8), torch.ones(1, 4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: subquad.DBA(), r"needs its sizes; write DBA\(dim=256"),
        (lambda: subquad.DBA(dim=8, max_len=4), "DBA needs heads; write"),
        (lambda: subquad.DBA(max_len=4), "DBA needs dim and heads; write"),
        (lambda: subquad.DBA(dim=8, heads=2, max_len=4, pattern="both"), "self or cross, not both"),
        (lambda: DBA(X, mask=torch.zeros(1, 4)), r"pass mask > -1"),
        (lambda: DBA(X, masks=Masks(torch.ones(1, 4))), "mask.bool()"),
        (lambda: DBA(torch.ones(2, 4, 8), masks=Masks(MASK)), r"has the shape \[2, 4\] here, not \[1, 4\]"),
        (lambda: DBA(X, torch.ones(1, 4, 8)), "one input"),
        (lambda: subquad.DBA(dim=8, heads=2, max_len=4, pattern="cross")(X), "needs the context"),
        (lambda: DBA(X, context_mask=MASK), "takes one mask"),
        (lambda: DBA(X, X, Masks(), mask=MASK), "not both"),
        (lambda: DBA(X, carry=X), "is given Masks"),
        (lambda: subquad.DBA(dim=8, heads=2, max_len=4, d_p=0), "attention.d_p is 0"),
        (lambda: setattr(subquad.Softmax(dim=8, heads=2).projections, "value", nn.Identity()), "parametrisation"),
        (lambda: setattr(DBA, "query", nn.Identity()), "parametrisation"),
    ],
)
def test_wrong_calls_are_explained(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_the_base_class_is_public():
    assert issubclass(subquad.DBA, Attention)


@pytest.mark.slow
def test_the_page_of_the_library_runs():
    page = (CONFIGS.parent / "docs" / "library.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) >= 3
    exec("\n".join(blocks), {})


PAGES = {page.stem: page.read_text() for page in (CONFIGS.parent / "docs" / "attentions").glob("*.md")}


@pytest.mark.parametrize("page", sorted(page for page, text in PAGES.items() if "As a model" in text))
def test_the_examples_of_whole_models_run(page):
    [example] = re.findall(r"```pycon\n(.*?)```", PAGES[page], flags=re.DOTALL)
    test, results = doctest.DocTestParser().get_doctest(example, {}, page, None, None), []
    doctest.DocTestRunner().run(test, out=results.append)
    assert test.examples
    assert results == []


def test_builders_leave_the_callers_hydra_alone():
    with initialize_config_dir(str(CONFIGS / "scheduler"), version_base="1.3"):
        subquad.build_attention("dba", dim=8, heads=2, max_len=4)
        assert compose("constant")


@pytest.mark.parametrize("attention", ["luna", subquad.Luna, functools.partial(subquad.Luna, l=16)])
def test_a_model_takes_any_form_of_attention(attention):
    spec = subquad.DataSpec(max_len=12, vocab=5, classes=3)
    model = subquad.build_model("sequence", spec, attention, dim=16, layers=2, heads=2)
    assert [type(layer.attention) for layer in model.layers] == [subquad.Luna] * 2
    assert model.layers[0].attention.l == 16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda spec: subquad.build_attention("dbq", dim=8, heads=2, max_len=4), "no attention dbq; did you mean dba"),
        (lambda spec: subquad.build_model("sequenze", spec), "no backbone sequenze; did you mean sequence"),
        (lambda spec: subquad.build_model("sequence", spec, "dbq"), "no attention dbq; did you mean dba"),
        (lambda spec: subquad.build_model("sequence", spec, dims=3), "no key dims; did you mean backbone.dim"),
        (lambda spec: subquad.build_model("vit", spec), "The backbone ViT reads images"),
    ],
)
def test_wrong_names_are_explained(call, message):
    with pytest.raises(UserError, match=message):
        call(subquad.DataSpec(max_len=12, vocab=5, classes=3))
