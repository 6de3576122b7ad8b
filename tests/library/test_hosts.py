"""Models that `swap` takes: softmax for softmax changes nothing, DBA learns there, is saved and loaded."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import timm
import torch
import transformers
from library.hosts import REAL, image, text
from timm.models.eva import Eva
from torch import Tensor, nn
from torch.testing import assert_close

from subquad import UserError, load_swapped, swap
from subquad.specs import UNKNOWN
from subquad.training.callbacks.refresh import _refresh

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script")  # transformers 5.0 with a newer torch
exactly = {"rtol": 0, "atol": 0}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SPEECH = {
    "conv_dim": (16,), "conv_kernel": (4,), "conv_stride": (4,), "num_conv_pos_embeddings": 4, "layerdrop": 0.0,
    "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer", "mask_time_prob": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    build: Callable[[], nn.Module]
    run: Callable[[nn.Module], Tensor]
    longest: int
    lost: tuple[tuple[str, ...], ...] = ((), ())
    """What softmax loses in each layer."""
    to_dba: tuple[str, ...] = ()
    """What DBA loses beside it."""
    image_size: int | None = None


def written(name: str, **changes: object) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(
        **SIZES | {"vocab_size": 50, "max_position_embeddings": 40} | changes
    )
    return getattr(transformers, f"{name}Model")(config)


def seen(name: str, **changes: object) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**SIZES | {"image_size": 32, "patch_size": 8} | changes)
    return getattr(transformers, f"{name}Model")(config)


def spoken(name: str, **changes: object) -> nn.Module:
    return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**SIZES | SPEECH | changes))


def speech(model: nn.Module, fill: float = 0.0) -> Tensor:
    """Four samples make a token."""
    real = REAL.repeat_interleave(4, 1)
    samples = torch.randn(real.shape, generator=torch.Generator().manual_seed(0))
    samples = torch.where(real, samples, fill).to(model.dtype)
    return model(samples, attention_mask=real.long()).last_hidden_state[REAL]


def mpnet() -> nn.Module:
    model = written("MPNet")
    nn.init.zeros_(model.encoder.relative_attention_bias.weight)  # without which it is softmax attention
    return model


def eva() -> nn.Module:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    return Eva(**sizes, num_classes=5, use_rot_pos_emb=True, ref_feat_shape=(4, 4), qkv_bias=True)


def deit3() -> nn.Module:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    return timm.create_model("deit3_small_patch16_224", **sizes, num_classes=5, init_values=1)


def naflex() -> nn.Module:
    sizes = {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    return timm.create_model("naflexvit_base_patch16_gap", **sizes, num_classes=5, init_values=1)


ROTARY = ("rotary positions",)


def patches(model: nn.Module) -> Tensor:
    """Of models of timm: their classifiers start near 0."""
    return image(model.forward_features)


PLACES = {
    "modernbert": Place(  # a layer with all tokens and one with a window, which is wider than the input
        lambda: written("ModernBert", global_attn_every_n_layers=2, pad_token_id=0), text, 40,
        lost=((), ("sliding_window",)), to_dba=ROTARY,
    ),
    "electra": Place(lambda: written("Electra", embedding_size=16), text, 40),
    "albert": Place(lambda: written("Albert", embedding_size=16), text, 40, lost=((),)),
    "mpnet": Place(mpnet, text, 38, lost=(("position_bias",),) * 2),
    "xlm_roberta": Place(lambda: written("XLMRoberta"), text, 38),
    "camembert": Place(lambda: written("Camembert"), text, 38),
    "deit": Place(lambda: seen("DeiT"), image, 18),
    "beit": Place(lambda: seen("Beit"), image, 17),
    "dinov2": Place(lambda: seen("Dinov2"), image, 17),
    "siglip": Place(lambda: seen("SiglipVision"), image, 16),
    "clip": Place(lambda: seen("CLIPVision"), image, 17),
    "wav2vec2": Place(lambda: spoken("Wav2Vec2"), speech, UNKNOWN),
    "wav2vec2_stable": Place(lambda: spoken("Wav2Vec2", do_stable_layer_norm=True), speech, UNKNOWN),
    "hubert": Place(lambda: spoken("Hubert"), speech, UNKNOWN),
    "eva": Place(eva, patches, 17, to_dba=ROTARY),
    "deit3": Place(deit3, patches, 17),
    "naflexvit": Place(naflex, patches, 20, image_size=32),
}  # fmt: skip


@pytest.fixture(params=PLACES)
def place(request):
    torch.manual_seed(0)
    return PLACES[request.param]


def test_a_host_takes_softmax_and_learns_with_dba_and_loads(place, tmp_path):
    model = place.build().eval()
    before = place.run(model)
    swapped = swap(model, "softmax", image_size=place.image_size)
    assert [(one.moved, one.new, one.lost, one.after.site.query_len) for one in swapped] == [
        (("query", "key", "value", "out"), (), lost, place.longest) for lost in place.lost
    ]
    assert_close(place.run(model), before, rtol=1e-5, atol=5e-6)
    swapped[0].after.projections.value.weight.data.mul_(50)
    assert not torch.allclose(place.run(model), before, atol=1e-3)

    swapped = swap(model, "dba", d_p=4)
    assert [one.lost for one in swapped] == [place.to_dba] * len(place.lost)
    output = place.run(model.train())
    (output * torch.randn_like(output)).sum().backward()
    assert all(p.grad is not None for one in swapped for p in one.after.parameters())
    torch.optim.SGD(model.parameters(), 1e-3).step()

    if hasattr(model, "save_pretrained"):
        model.save_pretrained(tmp_path)
        loaded = load_swapped(str(tmp_path))
    else:
        loaded = place.build().eval()
        swap(loaded, "dba", image_size=place.image_size, d_p=4)
        loaded.load_state_dict(model.state_dict())
    assert_close(place.run(loaded), place.run(model.eval()), **exactly)


@pytest.mark.parametrize("name", ["modernbert", "eva"])
def test_rotary_positions_reach_functions_of_queries_and_keys_only(name):
    place = PLACES[name]
    model = place.build().eval()
    [first, *_] = swap(model, "linear", where=[0])
    before = place.run(model)
    stand_in = model.get_submodule(first.name)
    stand_in.core = None  # as if the attention read the tokens
    assert not torch.allclose(place.run(model), before, atol=1e-5)
    [again] = swap(model, "dba", where=[0])
    assert (first.lost, again.lost) == ((), ("rotary positions",))
    assert stand_in.core is None


class Running(nn.Module):
    """A model that runs its place's example, whatever it is given."""

    def __init__(self, place: Place, model: nn.Module) -> None:
        super().__init__()
        self.place, self.model = place, model

    def forward(self, batch: None) -> Tensor:
        return self.place.run(self.model)


@pytest.mark.parametrize("name", ["modernbert", "eva"])
def test_training_fits_a_state_to_rotated_queries(name):
    model = PLACES[name].build().eval()
    swapped = swap(model, "ecoformer", anchors=4, image_size=PLACES[name].image_size)
    _refresh([one.after for one in swapped], Running(PLACES[name], model), None, seed=0)
    rotated = swapped[0].after.anchors.clone()
    model.get_submodule(swapped[0].name).core = None  # as if the attention read the tokens
    _refresh([swapped[0].after], Running(PLACES[name], model), None, seed=0)
    assert all(one.after.fitted for one in swapped)
    assert not torch.allclose(swapped[0].after.anchors, rotated, atol=1e-5)


def test_the_relative_bias_of_beit_is_taken_out():
    model = seen("Beit", use_relative_position_bias=True).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("relative_position_bias_table"):
            nn.init.normal_(parameter)
    before, swapped = image(model), swap(model, "softmax")
    assert [one.lost for one in swapped] == [("relative_position_bias",)] * 2
    assert not torch.allclose(image(model), before, atol=1e-3)
    assert not any("relative" in name for name, _ in model.named_parameters())


def test_the_hashes_of_yoso_are_reported_as_lost():
    model = written("Yoso").eval()
    before, swapped = text(model), swap(model, "softmax")
    assert [one.lost for one in swapped] == [("hash_code_len",)] * 2
    assert not torch.allclose(text(model), before, atol=1e-3)


@pytest.mark.parametrize(("name", "lost"), [("Autoformer", "autocorrelation_factor"), ("Informer", "factor")])
def test_the_mechanisms_of_forecasters_are_reported_as_lost(name, lost):
    sizes = {f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = getattr(transformers, f"{name}Config")(prediction_length=4, d_model=32, **sizes)
    encoder = getattr(transformers, f"{name}Model")(config).get_encoder()
    assert [one.lost for one in swap(encoder, "softmax")] == [(lost,)] * 2


def test_windows_of_modernbert_can_be_kept_by_local_attention():
    model = written("ModernBert", global_attn_every_n_layers=2, pad_token_id=0, local_attention=8).eval()
    before = text(model)
    swap(model, "softmax", where=[0])
    swap(model, "local", where=[1], window=8)
    assert_close(text(model), before, rtol=1e-5, atol=5e-6)
    swap(model, "softmax", where=[1])
    assert not torch.allclose(text(model), before, atol=1e-3)


def test_an_encoder_whose_attentions_return_less_than_they_are_annotated_with():
    sizes = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_layers": 1}
    sizes |= {"decoder_attention_heads": 4}
    whisper = written("Whisper", d_model=32, max_source_positions=20, pad_token_id=0, **sizes)
    encoder = whisper.get_encoder().eval()
    sound = torch.randn(2, 80, 40, generator=torch.Generator().manual_seed(0))
    before = encoder(sound).last_hidden_state
    assert len(swap(encoder, "softmax")) == 2
    assert_close(encoder(sound).last_hidden_state, before, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("name", ["ViT", "Yolos"])
def test_the_dropout_of_a_host_stays(name):
    model = seen(name, image_size=[32, 32], attention_probs_dropout_prob=0.3)
    assert [one.after.site.dropout for one in swap(model, "softmax")] == [0.3] * 2


def test_what_layers_pass_on_is_not_taken_past_dropped_layers():
    model = spoken("Wav2Vec2", layerdrop=1e-9)
    swap(model, "dba", d_p=4)
    assert speech(model.eval()).isfinite().all()
    with pytest.raises(UserError, match=r"layers at random in training \(layerdrop=1e-09\), and DBA passes a tensor"):
        speech(model.train())
    swap(model, "linear")
    assert speech(model).isfinite().all()


def test_two_towers_share_no_latent():
    model = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config=SIZES | {"vocab_size": 50}, vision_config=SIZES | {"image_size": 32, "patch_size": 8}
        )
    )
    swapped = swap(model, "dba")
    assert [(one.after.site.stage, one.after.site.layer) for one in swapped] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    with pytest.raises(UserError, match="attention is causal"):
        model.get_text_features(torch.ones(1, 4, dtype=torch.long))
    assert model.get_image_features(torch.ones(1, 3, 32, 32)) is not None


class Gated(nn.Module):
    """An attention of somebody else, in a model of transformers."""

    def __init__(self, **parts: object):
        super().__init__()
        self.num_heads = 4
        for name, part in ({name: nn.Linear(32, 32) for name in ("q", "k", "v", "o")} | parts).items():
            setattr(self, name, part)


def with_gated(**parts: object) -> nn.Module:
    model = written("Bert")
    model.encoder.layer[0].attention = Gated(**parts)
    return model


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: transformers.SwinModel(transformers.SwinConfig(depths=[1], num_heads=[3])), "windows of SwinModel"),
        (lambda: written("T5", d_model=32, num_layers=1, num_heads=4, d_kv=8), "has relative_attention_bias, which no"),
        (lambda: written("Llama"), "layers.0.self_attn is a part of a decoder, and no attention here is causal"),
        (lambda: written("Bart", d_model=32, encoder_layers=1, decoder_layers=1), "decoder.layers.0.self_attn is a"),
        (lambda: written("Esm", pad_token_id=1), "encoder.layer.0.attention.self has the scale 1, and attentions here"),
        (lambda: with_gated(gate=nn.Linear(32, 32)), "encoder.layer.0.attention has gate, which no attention here has"),
        (lambda: with_gated(o=None), "layer.0.attention has q, k, v, and no output map is known in it"),
        (lambda: with_gated(k=nn.Conv1d(32, 32, 1)), "layer.0.attention.k is a Conv1d, and was expected to be"),
        (lambda: with_gated(k=nn.Linear(32, 16)), "The key map of encoder.layer.0.attention is 32 -> 16 channels"),
        (lambda: with_gated(num_heads=None), "layer.0.attention does not say how many heads it has, as num_attention"),
        (lambda: with_gated(scale=1.0), "layer.0.attention has the scale 1, and"),
        (lambda: with_gated(attn_logit_softcapping=50.0), "attention has attn_logit_softcapping, which no attention"),
        (lambda: seen("VJEPA2", pred_num_hidden_layers=1), "has apply_rotary_embeddings, which no attention here has"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_named(build, message):
    with pytest.raises(UserError, match=message):
        swap(build(), "dba")


def test_an_argument_that_no_attention_reads_is_named():
    model = written("RoFormer", embedding_size=32)
    swap(model, "dba")
    with pytest.raises(UserError, match="The model passes sinusoidal_pos to its attentions, which no attention here"):
        text(model)


def test_attentions_of_anything_but_rows_of_tokens_are_refused():
    model = seen("VitDet")
    swap(model, "softmax")
    with pytest.raises(UserError, match=r"passes \[2, 4, 4, 32\] to its attentions, and attentions here take \[batch"):
        image(model)
    sizes = {"img_size": 64, "embed_dim": 32, "depth": 2, "num_heads": 4, "use_rel_pos": False}
    with pytest.raises(UserError, match=r"VisionTransformerSAM passes \[1, .*\] to its attentions"):
        swap(timm.create_model("samvit_base_patch16", **sizes), "softmax")


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("xcit_nano_12_p16_224", None, "blocks.0.attn has temperature, which no attention here has"),
        ("levit_128s", None, "stages.0.blocks.0.attn is of class Attention, whose queries, keys and values are not"),
        ("fasternet_t0", None, "Block has no attention of its own that can be replaced"),  # nor a size of its images
        ("efficientvit_m0", None, "EfficientVitBlock has no attention of its own"),  # states one size, not two
        ("pvt_v2_b0", None, "PyramidVisionTransformerV2 does not say how large its images are; pass it"),
        ("vit_tiny_patch16_224", 128, r"VisionTransformer does not read images of 128 x 128 \(Input height"),
    ],
)
def test_a_model_of_timm_without_what_is_needed_is_named(name, size, message):
    with pytest.raises(UserError, match=message):
        swap(timm.create_model(name), "softmax", image_size=size)
