"""Masked text: packing, splits, random and fixed masks, and the requirements on every data set."""

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from subquad.data.batches import Rows
from subquad.data.text import sources
from subquad.data.text.masked_text import MaskedText, unigram_perplexity
from subquad.data.text.token_masking import Blocks, MaskedBlocks, Masking
from subquad.data.text.tokenizer import Tokenizer, Vocabulary
from subquad.specs import UNMASKED
from subquad.utils.errors import UserError

SMALL = {"max_len": 32, "vocab": 400, "val_fraction": 0.1, "test_fraction": 0.1, "batch_size": 4, "seed": 0}
VOCABULARY = Vocabulary(size=1000, start=1, end=2, mask=4, special=(0, 1, 2, 3, 4), fingerprint="ab")


def made(root, **settings):
    settings = SMALL | {"synthetic": "folder" not in settings and "dataset" not in settings} | settings
    return MaskedText(root=str(root), **settings)


def prepared(root, **settings):
    data = made(root, **settings)
    data.prepare_data()
    return data


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("masked")


@pytest.fixture(scope="module")
def tokenizer(root):
    data = prepared(root)
    return Tokenizer(Path(data._cache.facts["tokenizer"]))


def read(tokenizer, ids):
    return tokenizer.backend.decode([int(i) for i in ids], skip_special_tokens=False)


def uncovered(batch):
    return torch.where(batch.target == UNMASKED, batch.inputs, batch.target)


# packing


def test_blocks_hold_the_whole_text_in_order_without_padding(root, tokenizer):
    data = prepared(root)
    for blocks in data.splits.values():
        rows = [blocks[i] for i in range(len(blocks))]
        assert all(len(row) == 32 for row in rows[:-1])
        assert 1 < len(rows[-1]) <= 32
        assert blocks.lengths.tolist() == [len(row) for row in rows]
        assert all(row[0] == tokenizer.vocabulary.start for row in rows)
        assert np.array_equal(np.concatenate([row[1:] for row in rows]), blocks.tokens)


def test_documents_end_with_a_separator_and_none_is_in_two_splits(root, tokenizer):
    data = prepared(root)
    folder = root / "synthetic" / "masked_text"
    files = {path.read_text(encoding="utf-8") for path in folder.rglob("*.txt")}
    decoded = {}
    for name, blocks in data.splits.items():
        *documents, rest = read(tokenizer, blocks.tokens).split("</s>")
        assert rest == ""
        decoded[name] = documents
    assert {name: len(documents) for name, documents in decoded.items()} == {"train": 32, "val": 4, "test": 4}
    assert sorted(files) == sorted(text for documents in decoded.values() for text in documents)


@pytest.mark.parametrize(("tokens", "lengths"), [(8, [5, 5]), (9, [5, 5, 2]), (1, [2]), (4, [5])])
def test_the_last_block_is_what_is_left(tokens, lengths):
    blocks = Blocks(np.arange(10, 10 + tokens, dtype=np.uint16), 5, 1)
    assert blocks.lengths.tolist() == lengths
    assert [len(blocks[i]) for i in range(len(blocks))] == lengths
    assert blocks[0].dtype == np.int64


def test_paragraphs_and_data_sets_are_other_ways_to_the_same_text(root, tmp_path):
    import datasets

    folder = prepared(root).folder
    paragraphs = prepared(root, folder=folder, document="paragraph")
    assert sum(len(rows) for rows in paragraphs._cache.splits.values()) == 80
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).rglob("*.txt"))]
    datasets.Dataset.from_dict({"body": texts}).to_parquet(str(tmp_path / "train.parquet"))
    same = prepared(root, dataset=str(tmp_path / "train.parquet"), column="body")
    assert np.array_equal(same.splits["train"].tokens, prepared(root).splits["train"].tokens)
    assert same.fingerprint == prepared(root).fingerprint


def test_a_data_set_keeps_its_own_splits(root, tmp_path, tokenizer):
    import datasets

    parts = {name: datasets.Dataset.from_dict({"text": [f"the {name} text"] * 3}) for name in ("train", "validation")}
    parts["test"] = datasets.Dataset.from_dict({"text": ["the test text", "another"]})
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "set"))
    data = prepared(root, dataset=str(tmp_path / "set"), tokenizer=prepared(root)._cache.facts["tokenizer"])
    assert read(tokenizer, data.splits["val"].tokens) == "the validation text</s>" * 3
    assert read(tokenizer, data.splits["test"].tokens) == "the test text</s>another</s>"
    del parts["validation"]
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "tested"))
    data = prepared(root, dataset=str(tmp_path / "tested"), tokenizer=prepared(root)._cache.facts["tokenizer"])
    assert read(tokenizer, data.splits["test"].tokens) == "the test text</s>another</s>"
    assert read(tokenizer, data.splits["val"].tokens) == "the train text</s>"


# the vocabulary


def test_the_tokenizer_is_trained_on_the_training_documents_alone(tmp_path):
    words = [f"unique{letter * 3}word" for letter in "abcdefghijklmnopqrst"]
    (tmp_path / "text").mkdir()
    for word in words:
        (tmp_path / "text" / f"{word}.txt").write_text(f"{word} " * 40)
    data = prepared(tmp_path, folder=str(tmp_path / "text"), vocab=2000)
    known = Tokenizer(Path(data._cache.facts["tokenizer"])).backend.get_vocab()
    texts = data._texts(tmp_path)
    kept_apart = {text.split()[0] for name in ("val", "test") for text in texts[name]}
    assert {word for word in words if word not in known} == kept_apart
    assert len(kept_apart) == 4


def test_a_tokenizer_of_ones_own_is_used_and_part_of_the_fingerprint(root, tmp_path):
    first = prepared(root)
    again = prepared(tmp_path / "other", folder=first.folder, tokenizer=first._cache.facts["tokenizer"])
    assert again.spec == first.spec
    assert again.fingerprint == first.fingerprint
    smaller = prepared(root, vocab=300)
    assert smaller.spec.tokenizer != first.spec.tokenizer
    assert smaller.fingerprint != first.fingerprint


def test_the_cache_follows_the_text_and_the_tokenizer(tmp_path):
    shutil.copytree(MaskedText.write_synthetic(tmp_path / "made"), tmp_path / "text")
    data = prepared(tmp_path, folder=str(tmp_path / "text"))
    tokenizer = Path(data._cache.facts["tokenizer"])
    given = made(tmp_path, folder=str(tmp_path / "text"), tokenizer=str(tokenizer))
    before = given.cache_folder
    assert made(tmp_path, folder=str(tmp_path / "text"), tokenizer=str(tokenizer)).cache_folder == before
    os.utime(tokenizer / "tokenizer.json", (1, 1))
    assert made(tmp_path, folder=str(tmp_path / "text"), tokenizer=str(tokenizer)).cache_folder != before
    (tmp_path / "text" / "0" / "0.txt").write_text("another text")
    assert made(tmp_path, folder=str(tmp_path / "text")).cache_folder != data.cache_folder


def test_a_prepared_text_is_opened_without_its_tokenizer(root, monkeypatch):
    prepared(root)
    monkeypatch.setattr(Tokenizer, "__init__", lambda *_: pytest.fail("the text was cut into tokens again"))
    assert len(prepared(root, max_len=16).splits["train"]) > len(prepared(root).splits["train"])


# masks


def rows_of(masking, count=400, length=64):
    tokens = np.random.default_rng(0).integers(5, 1000, count * (length - 1)).astype(np.uint16)
    tokens[::10] = 2
    return MaskedBlocks(Blocks(tokens, length, 1), VOCABULARY, masking, seed=0, fixed_seed=42)


def test_fractions_of_the_masks_are_those_of_the_settings():
    dataset = rows_of(Masking())
    batch = dataset.__getitems__(Rows(list(range(400)), place=3))
    whole = torch.stack([torch.from_numpy(dataset.blocks[i]) for i in range(400)])
    assert torch.equal(uncovered(batch) == whole, (batch.target != UNMASKED) | (batch.inputs == whole))
    asked = batch.target != UNMASKED
    assert torch.equal(batch.target[asked], whole[asked])
    assert torch.equal(batch.inputs[~asked], whole[~asked])
    assert not (asked & (whole <= 4)).any()
    text = (whole > 4).sum().item()
    assert asked.sum().item() / text == pytest.approx(0.15, abs=0.002)
    counts = (whole > 4).sum(1) * 0.15
    assert ((asked.sum(1) >= counts.floor()) & (asked.sum(1) <= counts.floor() + 1)).all()
    hidden, kept = batch.inputs[asked] == 4, batch.inputs[asked] == whole[asked]
    assert hidden.float().mean().item() == pytest.approx(0.8, abs=0.03)
    assert kept.float().mean().item() == pytest.approx(0.1, abs=0.02)
    swapped = batch.inputs[asked][~hidden & ~kept]
    assert swapped.min() > 4
    assert swapped.float().mean().item() == pytest.approx(502, abs=60)


def test_all_of_one_kind_can_be_asked_for():
    for masking, expected in ((Masking(1.0, 0.0, 0.0), {4}), (Masking(1.0, 0.0, 1.0), None)):
        dataset = rows_of(masking, count=2)
        batch = dataset.__getitems__([0])
        text = torch.from_numpy(dataset.blocks[0]) > 4
        assert torch.equal(batch.target[0] != UNMASKED, text)
        assert expected is None or set(batch.inputs[0][text].tolist()) == expected
        assert expected is not None or torch.equal(batch.inputs[0], torch.from_numpy(dataset.blocks[0]))


def test_masks_of_training_are_drawn_anew_and_hang_on_place_and_seed():
    dataset = rows_of(Masking())
    one, same, later = (dataset.__getitems__(Rows([5, 6], place=place)) for place in (7, 7, 8))
    assert torch.equal(one.inputs, same.inputs)
    assert torch.equal(one.target, same.target)
    assert not torch.equal(one.target, later.target)
    dataset.seed = 1
    assert not torch.equal(one.target, dataset.__getitems__(Rows([5, 6], place=7)).target)


def test_masks_of_evaluation_hang_on_the_block_alone():
    dataset = rows_of(Masking())
    together, alone = dataset.__getitems__([3, 9, 4]), dataset.__getitems__([9])
    assert torch.equal(together.inputs[1], alone.inputs[0])
    assert torch.equal(together.target[1], alone.target[0])
    dataset.seed = 1
    assert torch.equal(alone.target, dataset.__getitems__([9]).target)
    assert not torch.equal(together.target[0] == UNMASKED, together.target[1] == UNMASKED)


def test_a_block_of_special_tokens_has_nothing_to_predict():
    dataset = MaskedBlocks(Blocks(np.array([2, 2], np.uint16), 8, 1), VOCABULARY, Masking(1.0), 0, 0)
    batch = dataset.__getitems__([0])
    assert batch.inputs.tolist() == [[1, 2, 2]]
    assert (batch.target == UNMASKED).all()


# requirements on every data set


def assert_equal(one, other):
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert a is b is None or torch.equal(a, b)


def test_batches_are_what_the_spec_says(root):
    data = prepared(root)
    spec = data.spec
    assert (spec.classes, spec.channels) == (None, None)
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        for batch in loader:
            assert batch.inputs.dtype == batch.target.dtype == torch.int64
            assert batch.inputs.shape == batch.target.shape
            assert batch.inputs.shape[1] <= spec.max_len
            assert batch.inputs.min() >= 0
            assert batch.inputs.max() < spec.vocab
            asked = batch.target[batch.target != UNMASKED]
            assert ((asked > 4) & (asked < spec.vocab)).all()
            if batch.valid is not None:
                assert batch.valid[:, :2].all()
                assert not batch.inputs[~batch.valid].any()
                assert (batch.target[~batch.valid] == UNMASKED).all()


def test_evaluation_sees_every_block_once(root):
    data = prepared(root)
    for name in ("val", "test"):
        blocks = data.splits[name]
        uncovered_rows = [row for batch in getattr(data, f"{name}_dataloader")() for row in uncovered(batch)]
        expected = [torch.from_numpy(np.pad(blocks[i], (0, 32 - len(blocks[i])))) for i in range(len(blocks))]
        padded = [torch.nn.functional.pad(row, (0, 32 - len(row))) for row in uncovered_rows]
        assert sorted(map(tuple, torch.stack(padded).tolist())) == sorted(map(tuple, torch.stack(expected).tolist()))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core
def test_batches_do_not_hang_on_workers_or_on_where_training_began(root):
    def epochs(numbers, **settings):
        loader = prepared(root, steps_per_epoch=5, **settings).train_dataloader()
        batches = []
        for number in numbers:
            loader.batch_sampler.set_epoch(number)
            batches += list(loader)
        return batches

    whole = epochs([0, 1, 2])
    for one, other in zip(whole, epochs([0, 1, 2], num_workers=2), strict=True):
        assert_equal(one, other)
    for one, other in zip(whole[10:], epochs([2]), strict=True):
        assert_equal(one, other)
    assert not torch.equal(whole[0].target, epochs([0], seed=1)[0].target)


def test_the_baseline_is_what_counting_gives(root):
    [perplexity] = prepared(root).baselines().values()
    assert 5 < perplexity < 60
    vocabulary = dataclasses.replace(VOCABULARY, size=8)
    counted = unigram_perplexity(np.array([5, 5, 5, 6, 2, 2, 2, 2, 2]), np.array([5, 7, 2]), vocabulary)
    assert counted == pytest.approx((4 / 7 * 1 / 7) ** -0.5)


# errors


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"max_len": 1}, "data.max_len is 1; a block .* at least 2"),
        ({"masked": 0.0}, "data.masked must lie above 0"),
        ({"swapped": 0.6, "kept": 0.5}, "together at most 1"),
        ({"folder": "a", "dataset": "b"}, "data.folder or data.dataset, not both"),
    ],
)
def test_impossible_settings_are_refused(tmp_path, settings, cause):
    with pytest.raises(UserError, match=cause):
        made(tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"synthetic": False}, r"needs data.folder=<folder of \.txt files> or data.dataset="),
        ({"folder": "/nowhere/at/all"}, "/nowhere/at/all is missing.*data.folder"),
        ({"dataset": "some/set"}, r"datasets/some--set is missing; run `python scripts/prepare.py`.*data.dataset"),
        ({"folder": "{made}", "tokenizer": "some/name"}, r"tokenizers/some--name is missing.*data.tokenizer"),
    ],
)
def test_what_is_missing_is_named(tmp_path, settings, cause):
    if settings.get("folder") == "{made}":
        settings = settings | {"folder": str(MaskedText.write_synthetic(tmp_path))}
    with pytest.raises(UserError, match=cause):
        prepared(tmp_path, **settings)


def test_a_split_without_words_is_named(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(3):
        (tmp_path / "text" / f"{number}.txt").write_text("")
    with pytest.raises(UserError, match="has no words"):
        prepared(tmp_path, folder=str(tmp_path / "text"))
    assert not list(tmp_path.rglob("meta.json"))
    assert not list(tmp_path.rglob("*.tokens"))


def test_a_file_of_another_ending_is_refused_and_no_network_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("asked the library"))
    (tmp_path / "text.xyz").write_text("hello")
    with pytest.raises(UserError, match=r"text\.xyz cannot be read as a data set \(files end in \.parquet"):
        sources.read_dataset(tmp_path / "text.xyz", "text", tmp_path / "scratch")
