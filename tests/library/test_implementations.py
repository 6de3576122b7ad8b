"""Mechanisms as `attn_implementation` of transformers: what they compute, and what is refused."""

import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
import transformers
from conftest import made, mechanisms
from library.hosts import REAL, image, takes_heads, text
from library.test_hosts import seen, speech, spoken, written
from torch import nn
from torch.testing import assert_close

from subquad import Local, UserError, register_with_transformers
from subquad.library.implementations import Implementation

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script")  # transformers 5.0 with a newer torch
ENCODERS = {
    "bert": (partial(written, "Bert"), text),
    "roberta": (partial(written, "Roberta"), text),
    "modernbert": (
        partial(written, "ModernBert", global_attn_every_n_layers=2, local_attention=8, pad_token_id=0), text,
    ),
    "vit": (partial(seen, "ViT"), image),
    "clip": (partial(seen, "CLIPVision"), image),
    "wav2vec2": (partial(spoken, "Wav2Vec2"), speech),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def registered():
    return register_with_transformers(few=partial(made("attention", "nystromformer"), landmarks=4, kernel=None))


WINDOWS = hasattr(transformers.masking_utils, "create_bidirectional_sliding_window_mask")
"""Whether ModernBERT chooses its attention by name; in transformers 5.0 it does not."""


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)], ids=str)
def test_softmax_is_that_of_the_model(name, kind, dtype, error):
    if name == "modernbert" and not WINDOWS:
        return
    build, run = ENCODERS[name]
    torch.manual_seed(0)
    model, results = build().eval().to(dtype), []
    for implementation in (kind, "subquad_softmax"):
        model.set_attn_implementation(implementation)
        y = run(model)
        loss = (y.float() * torch.linspace(-1, 1, y.shape[-1])).sum()
        gradients = torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)
        results.append([y.detach(), torch.cat([g.flatten().float() for g in gradients if g is not None])])
    for expected, found in zip(*results, strict=True):
        assert (found - expected).norm() < error * expected.norm()
    if name == "modernbert":  # whose windows matter here
        model.config.sliding_window = 100
        assert (run(model) - results[0][0]).norm() > 1e-3 * results[0][0].norm()


def implementation(name, **settings):
    return Implementation("subquad_it", partial(made("attention", name), **settings), {})


def attended(name, *heads, module=None, mask=None, settings=None, **given):
    return implementation(name, **settings or {})(module or nn.Identity().eval(), *heads, mask, **given)[0]


def heads(*counts, length=20, width=8):
    return [torch.randn(2, count, length, width) for count in counts]


@pytest.mark.parametrize("name", mechanisms())
def test_every_mechanism_of_queries_keys_and_values_ignores_padding_or_is_refused(name):
    qkv, mask, module = heads(4, 4, 4), REAL[1:, None, None], nn.Identity().eval()
    module.config = transformers.BertConfig(max_position_embeddings=40)
    if not takes_heads(name):
        with pytest.raises(UserError, match=r"use subquad\.swap|grid"):
            attended(name, *qkv, module=module, mask=mask)
        return
    y = attended(name, *qkv, module=module, mask=mask)
    assert y.shape == (2, 20, 4, 8)
    other = [torch.where(REAL[1:, None, :, None], t, 100.0) for t in qkv]
    assert_close(attended(name, *other, module=module, mask=mask)[REAL[1:]], y[REAL[1:]], rtol=1e-4, atol=1e-5)


def test_scale_groups_and_dropout_of_the_model_are_used():
    q, k, v = heads(4, 2, 2)
    expected = F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True).transpose(1, 2)
    assert_close(attended("softmax", q, k, v, scaling=0.3), expected)
    module = nn.Identity()
    dropped = [attended("softmax", q, k, v, module=module, dropout=0.5) for _ in range(2)]
    assert not torch.allclose(*dropped)
    assert_close(attended("softmax", q, k, v, module=module.eval(), dropout=0.5), attended("softmax", q, k, v))


def test_settings_are_those_of_the_call():
    q, k, v = heads(4, 4, 4)
    register_with_transformers(nystromformer={"landmarks": 2}, narrow=partial(Local, window=4), local={"max_len": 30})
    registry = transformers.AttentionInterface()
    module = nn.Identity().eval()
    few, narrow = (registry[f"subquad_{name}"](module, q, k, v, None)[0] for name in ("nystromformer", "narrow"))
    assert_close(few, attended("nystromformer", q, k, v, settings={"landmarks": 2, "kernel": None}))
    assert_close(narrow, attended("local", q, k, v, settings={"window": 4}))
    assert [use.max_len for use in registry["subquad_narrow"].built] == [0]
    registry["subquad_local"](module, q, k, v, None)
    assert [use.max_len for use in registry["subquad_local"].built] == [30]
    wrong = {"landmark": 2, "landmarks": -1, "heads": 2}
    for name, given in (*(("nystromformer", {key: value}) for key, value in wrong.items()), ("few", 4), ("fewer", {})):
        with pytest.raises(
            UserError, match=r"do not fit|choose|heads of nystromformer cannot|few is 4; pass|no attention"
        ):
            register_with_transformers(**{name: given})


def test_random_features_are_the_same_in_every_process_and_leave_the_generator_alone():
    qkv, state = heads(4, 4, 4), torch.get_rng_state()
    first = attended("performer", *qkv)
    assert torch.equal(torch.get_rng_state(), state)
    torch.randn(3)
    assert torch.equal(attended("performer", *qkv), first)


def called(build, name, run=text):
    model = build()
    model.set_attn_implementation(f"subquad_{name}")
    return run(model)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: called(partial(written, "Bert", is_decoder=True), "linear"), "this model asks for a causal mask"),
        (lambda: called(partial(written, "Llama"), "softmax"), "this model asks for a causal mask or another one"),
        (lambda: called(ENCODERS["modernbert"][0], "linear"), "Linear has no sliding window, and this model has one"),
        (lambda: called(ENCODERS["modernbert"][0], "local_block"), "Local has no sliding window"),
        (lambda: called(ENCODERS["bert"][0], "dba"), "DBA has parameters of its own .latent.*use subquad.swap"),
        (lambda: called(ENCODERS["bert"][0], "ecoformer"), "EcoFormer has a state that is fitted to data, for which"),
        (lambda: called(ENCODERS["bert"][0], "fnet"), "FNet reads the tokens themselves, for which models"),
        (lambda: called(ENCODERS["vit"][0], "bigbird", image), "BigBird needs its longest input"),
        (lambda: attended("linear", *heads(4, 4, 4), is_causal=True), "is not causal, and Identity is"),
        (lambda: attended("linear", *heads(4), *heads(4, 4, length=9)), "20 queries read 9 keys"),
        (lambda: attended("linear", *heads(4, 4), *heads(4, width=4)), "they have 4 and 8 channels a head"),
        (lambda: attended("linear", *heads(4, 4, 4), softcap=50.0), "Identity passes softcap, which subquad_it does"),
        (lambda: attended("softmax", *heads(4, 4, 4), sliding_window=5), "window of Identity is not in its mask"),
        (lambda: attended("softmax", *heads(4, 4, 4), mask=torch.ones(2, 1, 20, 20).tril().bool()), "differs between"),
    ],
)  # fmt: skip
def test_what_a_mechanism_cannot_compute_is_refused_at_the_first_call(call, message):
    if "has no sliding window" in message and not WINDOWS:
        return
    with pytest.raises(UserError, match=message):
        call()


def test_a_missing_or_old_transformers_is_named(monkeypatch):
    monkeypatch.delattr(transformers.masking_utils, "bidirectional_mask_function")
    with pytest.raises(UserError, match=r"needs transformers 5.0 or newer .* pip install"):
        register_with_transformers()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs transformers 5.0 or newer .* pip install"):
        register_with_transformers()
