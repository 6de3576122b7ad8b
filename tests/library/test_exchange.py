"""`swap`: softmax for softmax changes nothing, other attentions learn there, respect padding, or are refused."""

import copy

import pytest
import timm
import torch
import transformers
from library.hosts import FAMILIES, LENGTHS, REAL, bert, encoder, steps, text
from runs import composed, prepared
from timm.models.vision_transformer import ParallelThingsBlock, VisionTransformer
from torch import nn
from torch.testing import assert_close

from subquad import DBA, Luna, Pattern, Softmax, UserError, swap
from subquad.library.padding import real_tokens

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True"
)
TEXT = {name: family for name, family in FAMILIES.items() if family.padded}


class CrossOnly(Softmax):
    patterns = frozenset({Pattern.CROSS})


def vit(**options):
    return VisionTransformer(**{"embed_dim": 32, "num_heads": 4, "depth": 1, "norm_layer": nn.LayerNorm} | options)


def with_attention(**options):
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    layer.self_attn = nn.MultiheadAttention(32, 4, batch_first=True, **options)
    return layer


def swapped(attention):
    model = encoder()
    swap(model, attention, max_len=30)
    return model


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


def test_softmax_for_softmax_changes_nothing(family):
    model = family.build().eval()
    before = family.run(model)
    swapped = swap(model, "softmax", **family.options)
    assert {(type(one.after), one.moved, one.new, one.lost) for one in swapped} == {
        (Softmax, ("query", "key", "value", "out"), (), ())
    }
    assert all(model.get_submodule(one.name).attention is one.after for one in swapped)
    assert_close(family.run(model), before, rtol=1e-5, atol=2e-6)
    with torch.no_grad():  # where torch's fast path would run
        assert_close(family.run(model), before, rtol=1e-5, atol=2e-6)
    swapped[0].after.projections.value.weight.data.mul_(50)
    assert not torch.allclose(family.run(model), before, atol=1e-3)


@pytest.mark.parametrize("attention", ["dba", "luna", "linformer"])
def test_every_parameter_of_a_swapped_attention_learns(family, attention):
    model = family.build()
    swapped = swap(model, attention, **family.options)
    assert all(one.moved and one.new for one in swapped)
    output = family.run(model)
    (output * torch.randn_like(output)).sum().backward()  # the sum of a normalised output has no gradient
    missing = [name for one in swapped for name, p in one.after.named_parameters() if p.grad is None]
    assert missing == []


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("attention", ["softmax", "dba", "luna", "linear", "nystromformer"])
def test_padding_is_invisible(name, attention):
    family = TEXT[name]
    model = family.build().eval()
    swap(model, attention, **family.options)
    with torch.no_grad():
        assert_close(family.run(model, fill=3), family.run(model, fill=7), rtol=1e-5, atol=2e-6)


def test_weights_stay_new_if_wished():
    model = bert("Bert").eval()
    old = copy.deepcopy(model)
    [one, *_] = swap(model, "softmax", keep_weights=False)
    assert one.moved == ()
    assert len(one.new) == 8
    assert not torch.allclose(text(model), text(old), atol=1e-3)


def test_chosen_attentions_are_replaced_and_share_their_latent():
    model = bert("Bert")
    swapped = swap(model, "dba", where="encoder.layer.[02].*", d_p=4)
    assert [one.name for one in swapped] == ["encoder.layer.0.attention.self", "encoder.layer.2.attention.self"]
    assert [one.after.latent is None for one in swapped] == [False, True]
    assert [one.after.d_p for one in swapped] == [4, 4]
    assert text(model).isfinite().all()
    again = swap(encoder(), Luna, where=[1], max_len=30)
    assert [one.name for one in again] == ["layers.1.self_attn"]


@pytest.mark.parametrize("first", ["dba", "fnet"])
def test_what_was_swapped_is_swapped_again(family, first):
    model, plain = family.build().eval(), family.build().eval()
    plain.load_state_dict(model.state_dict())
    before, once = swap(model, first, **family.options), swap(plain, "dba", **family.options)
    again = swap(model, "dba")
    assert [(one.name, one.before) for one in again] == [(one.name, one.after) for one in before]
    assert all(model.get_submodule(one.name).attention is one.after for one in again)
    assert [one.after.site for one in again] == [one.after.site for one in once]
    assert [one.moved for one in again] == [one.moved for one in before]
    assert family.run(model).isfinite().all()


def test_reduced_keys_are_reported_as_lost():
    swapped = swap(timm.create_model("pvt_v2_b0"), "linear", image_size=32, where="stages.0.*")
    assert [one.lost for one in swapped] == [("sr.weight", "sr.bias", "norm.weight", "norm.bias")] * 2
    assert "lost sr.weight" in repr(swapped[0])


def test_maps_without_a_counterpart_are_reported_as_lost():
    [one] = swap(FAMILIES["bert"].build(), "reformer", where=[0])
    assert (one.moved, one.lost) == (("query", "value", "out"), ("key",))


def test_swapped_attentions_have_the_type_and_mode_of_the_model():
    model = bert("Bert").to(torch.bfloat16).eval()
    for one in swap(model, "dba"):
        assert {p.dtype for p in one.after.parameters()} == {torch.bfloat16}
        assert not one.after.training
        assert one.after.site.dropout == 0.1
    images = FAMILIES["vit"].build().double()
    swap(images, "dba")
    assert images(torch.randn(2, 3, 32, 32, dtype=torch.float64)).isfinite().all()


def test_moved_weights_of_a_frozen_attention_stay_frozen():
    model = encoder().requires_grad_(False)
    new = {f"{one.name}.attention.{name}" for one in swap(model, "luna") for name in one.new}
    assert {name for name, weight in model.named_parameters() if weight.requires_grad} == new


def test_masks_of_every_form_are_read():
    additive = torch.zeros(3, 1, 20, 20).masked_fill(~REAL[:, None, None, :], torch.finfo(torch.float32).min)
    for mask in (REAL, REAL.long(), REAL[:, None, None, :], REAL[:, None, None, :].expand(-1, 1, 20, -1), additive):
        assert torch.equal(real_tokens(mask), REAL)
    assert torch.equal(real_tokens(additive.clamp(min=-1e4)), REAL)
    assert real_tokens(None) is None
    for wrong in (torch.ones(20, 20).tril().bool()[None, None], additive + torch.arange(20.0)):
        with pytest.raises(UserError, match="pass a mask"):
            real_tokens(wrong)
    with pytest.raises(UserError, match="pass additive_mask > -1"):
        real_tokens(additive[:, 0, 0])


@pytest.mark.slow
def test_compiled_models_read_the_same_masks_and_refuse_the_same():
    read = torch.compile(real_tokens, backend="aot_eager", fullgraph=True)
    additive = torch.zeros(3, 1, 20, 20).masked_fill(~REAL[:, None, None, :], torch.finfo(torch.float32).min)
    for mask in (REAL, REAL[:, None, None, :].expand(-1, 1, 20, -1), additive):
        assert torch.equal(read(mask), REAL)
    for wrong in (torch.ones(20, 20).tril().bool()[None, None], additive + torch.arange(20.0), additive[:, 0, 0]):
        with pytest.raises(RuntimeError, match=r"pass a mask|pass additive_mask > -1"):
            read(wrong)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: swap(nn.Linear(2, 2), "dba"), "Linear has no self-attention that can be replaced; supported are"),
        (lambda: swap(timm.create_model("swin_tiny_patch4_window7_224"), "dba"), "Swin is not, because"),
        (lambda: swap(nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2), 1), "dba"), "causal masks"),
        (lambda: swap(bert("Bert", is_decoder=True), "dba"), "causal decoder, and no attention here is causal"),
        (lambda: swap(encoder(), "linformer"), "needs its longest input, .* pass it, as max_len=1024"),
        (lambda: swap(timm.create_model("pvt_v2_b0"), "dba"), "pass it, as image_size=224"),
        (lambda: swap(bert("Bert"), "dbq"), "did you mean dba"),
        (lambda: swap(bert("Bert"), "dba", where="decoder.*"), "names no attention of this model; it has 0 to 2: enc"),
        (lambda: swap(bert("Bert"), "dba", where=[0, 3]), "names no attention of this model"),
        (lambda: swap(bert("Bert"), "dba", where=1), r"where=1 is no pattern .* write where=\[0, 1\]"),
        (lambda: swap(bert("Bert"), "dba", d_q=4), "settings of dba do not fit .*'d_q'.*; see docs/attentions.md"),
        (lambda: swap(bert("Bert"), "dba", heads=2), "heads cannot be set here; the model has its own"),
        (lambda: swap(bert("Bert"), 5), "5 is no attention; pass the name of a choice, a class or a factory"),
        (lambda: swap(bert("Bert"), CrossOnly), "CrossOnly has no self-attention form; it supports cross-attention"),
        (lambda: swap(vit(qk_norm=True), "dba"), "blocks.0.attn has k_norm, q_norm, which no attention here has"),
        (lambda: swap(vit(block_fn=ParallelThingsBlock), "dba"), "ParallelThingsBlock has no attention of its own"),
        (lambda: swap(with_attention(add_bias_kv=True), "dba", max_len=9), "add_bias_kv or add_zero_attn, which no"),
        (lambda: swap(with_attention(add_zero_attn=True), "dba", max_len=9), "add_bias_kv or add_zero_attn, which no"),
        (
            lambda: swap(swapped("dba"), "linear", where=[1]),
            "layers.0.self_attn, .* form a stack of DBA, whose layers may",
        ),
        (lambda: swap(vit(scale_attn_norm=True), "dba"), "blocks.0.attn has norm, which no attention here has"),
    ],
)
def test_what_cannot_stand_there_is_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: run(inputs(), mask=nn.Transformer.generate_square_subsequent_mask(20)), "mask of pairs"),
        (lambda run: run(inputs(), src_key_padding_mask=torch.rand(3, 20)), "other values than 0 and large negative"),
        (lambda run: run(inputs()[0]), "need a batch of three axes"),
        (lambda run: run(torch.nested.nested_tensor([torch.ones(5, 32)])), "pad nested tensors"),
    ],
)
def test_calls_that_softmax_of_torch_allows_are_refused(call, message):
    model = encoder().eval()
    swap(model, "linear", max_len=30)
    with pytest.raises(UserError, match=message), torch.no_grad():
        call(model)


def test_masks_of_pairs_are_refused_in_models_of_timm():
    model = vit(img_size=32, patch_size=8)
    swap(model, "linear")
    with pytest.raises(UserError, match="mask of pairs"):
        model.forward_features(torch.ones(1, 3, 32, 32), attn_mask=torch.ones(17, 17).bool())


def test_a_part_of_what_was_swapped_is_swapped_again():
    model = vit(img_size=32, patch_size=8, depth=3)
    [first] = swap(model, "dba", where=[1])
    assert [one.before is first.after for one in swap(model, "linear")] == [False, True, False]
    assert len({id(block.attn.slot) for block in model.blocks}) == 1
    swap(model, "luna", where=[2])
    assert model(torch.ones(1, 3, 32, 32)).isfinite().all()


def test_an_error_leaves_the_model_as_it_was():
    model = bert("Bert").eval()
    before = text(model)
    with pytest.raises(UserError, match=r"attention\.d_p"):
        swap(model, DBA, d_p=0)
    assert torch.equal(text(model), before)


def test_a_bert_learns_synthetic_sst2_before_and_after(data, outputs):
    sentences = prepared(composed(data, outputs, "task=glue/sst2", "data=synthetic", "scale=smoke"))
    batch = sentences.whole_batch(range(16))
    ids, valid = batch.inputs.long(), torch.ones_like(batch.inputs) if batch.valid is None else batch.valid.long()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        vocab_size=sentences.spec.vocab, max_position_embeddings=sentences.spec.max_len,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)

    def losses(steps: int) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        history = []
        for _ in range(steps):
            loss = model(input_ids=ids, attention_mask=valid, labels=batch.target).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        return history

    first, last = losses(25)[::24]
    assert last < 0.6 * first
    assert [one.moved for one in swap(model, "dba", d_p=8)] == [("query", "key", "value", "out")] * 2
    again = losses(25)
    assert again[-1] < 0.3 * first


def test_the_fast_path_of_torch_does_not_read_the_old_weights():
    model = encoder().eval()
    with torch.no_grad():
        before = steps(model)
        swap(model, "linear", max_len=30)
        assert not torch.allclose(steps(model), before, atol=1e-3)
        assert_close(steps(model), torch.cat([model(x[None, :n])[0] for x, n in zip(inputs(), LENGTHS, strict=True)]))


def inputs() -> torch.Tensor:
    x = torch.randn(*REAL.shape, 32, generator=torch.Generator().manual_seed(0))
    return torch.where(REAL[..., None], x, 0.0)
