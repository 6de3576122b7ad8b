"""Models of transformers that were swapped, saved and loaded again, and trained by that library's Trainer."""

import gc
import json
from functools import partial

import pytest
import timm
import torch
import transformers
from library.hosts import FAMILIES, bert
from safetensors import safe_open
from safetensors.torch import save_model
from torch.testing import assert_close

from subquad import DBA, Attention, Linear, load_swapped, swap
from subquad.utils.errors import UserError

exactly = {"rtol": 0, "atol": 0}


class Doubled(Linear):
    """An attention of somebody else."""


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "hf_vit"])
@pytest.mark.parametrize("attention", ["dba", "linformer_layer", "performer", partial(DBA, d_p=4)], ids=str)
def test_a_swapped_model_is_saved_and_loaded_as_any_other(family, attention, tmp_path):
    model = FAMILIES[family].build().eval()
    swap(model, attention)
    model.save_pretrained(tmp_path)
    again = load_swapped(str(tmp_path), dtype=model.dtype)
    assert type(again) is type(model)
    assert_close(FAMILIES[family].run(again), FAMILIES[family].run(model), **exactly)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:  # each tensor once
        assert len(file.keys()) == len({tensor.data_ptr() for tensor in model.state_dict().values()})
    again.save_pretrained(tmp_path / "again")
    assert_close(load_swapped(str(tmp_path / "again")).state_dict(), model.state_dict(), **exactly)


def test_all_swaps_are_kept_in_their_order(tmp_path):
    model = bert("Bert").eval()
    swap(model, "linear")
    swap(model, "dba", where=[0, 2], d_p=4)
    swap(model, "performer", where="encoder.layer.1.*")
    model.save_pretrained(tmp_path)
    again = load_swapped(str(tmp_path))
    names = [type(layer.attention.self.attention).__name__ for layer in again.encoder.layer]
    assert names == ["DBA", "Performer", "DBA"]
    assert_close(FAMILIES["bert"].run(again.double()), FAMILIES["bert"].run(model))
    other = load_swapped(str(tmp_path), transformers.BertForSequenceClassification)
    assert type(other.bert.encoder.layer[0].attention.self.attention) is DBA


@pytest.mark.parametrize("attention", ["performer", "luna"])
def test_tied_weights_of_a_swap_that_another_replaced_are_not_looked_for(attention, tmp_path):
    model = bert("Bert").eval()
    swap(model, "dba")
    swap(model, attention)
    model.save_pretrained(tmp_path)
    assert_close(load_swapped(str(tmp_path)).state_dict(), model.state_dict(), **exactly)


def test_models_with_one_configuration_are_not_swapped_both(tmp_path):
    model = bert("Bert").eval()
    swap(model, "dba")
    other = type(model)(model.config).eval()
    with pytest.raises(UserError, match=r"Another BertModel, .* shares its configuration .* own copy"):
        swap(other, "linear")
    assert not any(isinstance(module, Attention) for module in other.modules())
    swap(model.encoder, "linear")
    del model
    gc.collect()
    swap(other, "performer")
    other.save_pretrained(tmp_path)
    assert_close(load_swapped(str(tmp_path)).state_dict(), other.state_dict(), **exactly)


@pytest.mark.parametrize("attention", ["linear", "dba"])
def test_the_swapped_encoder_of_an_encoder_decoder_is_saved_with_it(attention, tmp_path):
    model = transformers.BartModel(
        transformers.BartConfig(
            d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=50, max_position_embeddings=40,
        )
    ).eval()  # fmt: skip
    swap(model.get_encoder(), attention)
    model.save_pretrained(tmp_path)
    again, words = load_swapped(str(tmp_path)), torch.randint(5, 50, (2, 9))
    assert_close(again(words).last_hidden_state, model(words).last_hidden_state, **exactly)
    again.save_pretrained(tmp_path / "again")
    assert_close(load_swapped(str(tmp_path / "again")).state_dict(), model.state_dict(), **exactly)


def test_what_cannot_be_loaded_is_explained(tmp_path):
    model = bert("Bert")
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"No swap is stored in .*; load it by from_pretrained of transformers, then"):
        load_swapped(str(tmp_path))
    swap(model, Doubled)
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has the attention .*:Doubled, which is not Subquad's; pass trust_code=True"):
        load_swapped(str(tmp_path))
    assert isinstance(load_swapped(str(tmp_path), trust_code=True).encoder.layer[0].attention.self.attention, Doubled)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["subquad"][0]["attention"] = "subquad.attention.base:torch.nn.Identity"
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match=r"torch.nn.Identity, which is not Subquad's; do not trust it"):
        load_swapped(str(tmp_path))
    config["subquad"][0]["attention"] = "no.such:Thing"
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match=r"no.such:Thing, which cannot be imported"):
        load_swapped(str(tmp_path), trust_code=True)
    with pytest.raises(UserError, match="has no configuration of a model"):
        load_swapped(str(tmp_path / "nothing"))


def test_models_of_timm_load_their_weights_after_the_swap(tmp_path):
    models = []
    for _ in range(2):
        models.append(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2).eval())
        swap(models[-1], "dba")
    save_model(models[0], tmp_path / "weights.safetensors")
    torch.save(models[0].state_dict(), tmp_path / "weights.pth")
    for file in ("weights.safetensors", "weights.pth"):
        timm.models.load_checkpoint(models[1], str(tmp_path / file), strict=file.endswith("pth"))
        images = torch.randn(2, 3, 32, 32)
        assert_close(models[1](images), models[0](images), **exactly)


class Stop(transformers.TrainerCallback):
    """Ends training after a step, as a killed job does: the last checkpoint is that of step 5."""

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 7:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_trainer_of_transformers_trains_saves_and_resumes(tmp_path):
    ids = torch.randint(4, 50, (40, 12), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row[0] % 2} for row in ids]

    def trainer(folder, *callbacks):
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **sizes))
        swap(model, "dba", d_p=4)
        settings = transformers.TrainingArguments(
            str(tmp_path / folder), max_steps=10, save_steps=5, per_device_train_batch_size=4, seed=0, report_to=[],
            use_cpu=True, disable_tqdm=True, learning_rate=1e-2, logging_steps=5,
        )  # fmt: skip
        return transformers.Trainer(model, settings, train_dataset=rows, callbacks=list(callbacks))

    whole = trainer("whole")
    whole.train()
    with pytest.raises(KeyboardInterrupt):
        trainer("killed", Stop()).train()
    resumed = trainer("killed")
    resumed.train(resume_from_checkpoint=True)
    assert_close(resumed.model.state_dict(), whole.model.state_dict(), **exactly)
    loaded = load_swapped(str(tmp_path / "killed" / "checkpoint-10"))
    assert_close(loaded.state_dict(), whole.model.state_dict(), **exactly)
