"""Questions as words, as word vectors and as tokens and features of an ALBERT."""

import json
import shutil

import numpy as np
import pytest
import torch

from subquad.blocks.albert import open_albert
from subquad.data import ragged
from subquad.data.vqa import synthetic_vqa, vqa_text
from subquad.utils.errors import UserError


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("What color is the dog?", ["what", "color", "is", "the", "dog"]),
        ("Is it a T-shirt/top?", ["is", "it", "a", "t", "shirt", "top"]),
        ("What's Tom's #1, (really)?", ["whats", "toms", "1", "really"]),
        ("50% of $5?", ["50%", "of", "$5"]),
        ("?", []),
    ],
)
def test_words(question, words):
    assert vqa_text.words(question) == words


def test_ids_are_cut_and_never_empty():
    rows = vqa_text.word_ids(["The dog, the cat", "?", "a zebra"], ["cat", "dog", "the"], 3)
    assert [ids.tolist() for ids in rows] == [[4, 3, 4], [1], [1, 1]]


def test_vectors_are_read_for_known_words_only(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2 3\n. . . 7 8 9\nzebra 4 5 6\ncat -1 0.5 2e-1\n")
    vectors = vqa_text.glove(path, ["cat", "dog", "the", ". . ."], dim=3)
    expected = [[0, 0, 0], [0, 0, 0], [-1, 0.5, 0.2], [0, 0, 0], [1, 2, 3], [7, 8, 9]]
    assert np.allclose(vectors, expected)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"the 1 2\n", "a line of 2 numbers where 3"),
        (b"the 1 2 x\n", "holds no word vectors"),
        (b"caf\xe9 1 2 3\n", "holds no word vectors"),
        (b"zebra 1 2 3\n", "a vector for none of the 1 words"),
    ],
)
def test_files_without_vectors_are_named(tmp_path, content, cause):
    path = tmp_path / "glove.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=cause):
        vqa_text.glove(path, ["the"], dim=3)


@pytest.fixture(scope="module")
def genuine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("albert")
    synthetic_vqa.write_albert(folder)
    return folder


@pytest.fixture
def albert(genuine, tmp_path):
    return shutil.copytree(genuine, tmp_path / "albert")


QUESTIONS = ["What color is the dog?", "Is the dog red?", "A?"]


def test_tokens_begin_and_end_with_those_of_the_model(albert):
    long, short = (vqa_text.albert_ids(albert, QUESTIONS, length) for length in (17, 4))
    assert [len(ids) for ids in short] == [4, 4, 4]
    assert [len(ids) for ids in long] == [8, 7, 5]
    for ids in (*long, *short):
        assert (ids[0], ids[-1]) == (2, 3)
    assert (short[0][:3] == long[0][:3]).all()


def test_features_are_the_last_layer_of_each_question_alone(albert, tmp_path):
    ids = vqa_text.albert_ids(albert, QUESTIONS, 17)
    questions = ragged.lay_out(ids[::-1], np.zeros(3, np.int64))
    vqa_text.embed(albert, questions, tmp_path / "cache", tmp_path)
    features = ragged.read(tmp_path / "cache").splits["features"]
    assert features.values.dtype == np.float16
    model = open_albert(albert).eval()
    for i, row in enumerate(ids[::-1]):
        with torch.no_grad():
            alone = model(input_ids=torch.from_numpy(row.astype(np.int64))[None]).last_hidden_state[0]
        assert np.allclose(features[i], alone.numpy(), atol=4e-3)


def test_batches_do_not_show_in_the_features(albert, tmp_path, monkeypatch):
    questions = ragged.lay_out(vqa_text.albert_ids(albert, QUESTIONS[::-1], 17), np.zeros(3, np.int64))
    vqa_text.embed(albert, questions, tmp_path / "one", tmp_path)
    monkeypatch.setattr(vqa_text, "_BATCH_SIZE", 2)
    vqa_text.embed(albert, questions, tmp_path / "two", tmp_path)
    one, two = (ragged.read(tmp_path / name).splits["features"] for name in ("one", "two"))
    assert np.array_equal(one.offsets, two.offsets)
    assert np.allclose(one.values, two.values, atol=4e-3)


def test_a_full_disk_is_named(albert, tmp_path):
    questions = ragged.lay_out(vqa_text.albert_ids(albert, QUESTIONS * 200, 17), np.zeros(600, np.int64))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "features").symlink_to("/dev/full")
    with pytest.raises(UserError, match="The disk is full"):
        vqa_text.embed(albert, questions, tmp_path / "cache", tmp_path / "full")
    assert ragged.read(tmp_path / "cache") is None


def test_the_facts_of_an_albert_follow_its_files(albert):
    facts = vqa_text.albert_facts(albert)
    assert (facts["width"], facts["vocab"]) == (32, json.loads((albert / "config.json").read_text())["vocab_size"])
    weights = albert / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert vqa_text.albert_facts(albert)["digest"] != facts["digest"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_parts_say_what_to_put_where(albert, name):
    (albert / name).unlink()
    with pytest.raises(UserError, match=r"holds no ALBERT; put config\.json, model\.safetensors and tokenizer\.json"):
        vqa_text.albert_facts(albert)


@pytest.mark.parametrize("content", ["{", "[]", '{"hidden_size": 3}'])
def test_a_configuration_of_something_else_is_named(albert, content):
    (albert / "config.json").write_text(content)
    with pytest.raises(UserError, match="describes no ALBERT"):
        vqa_text.albert_facts(albert)


def test_damaged_weights_and_tokenizers_are_named(albert, tmp_path):
    (albert / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="holds no ALBERT that can be read"):
        open_albert(albert)
    (albert / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="holds no tokenizer that can be read"):
        vqa_text.albert_ids(albert, QUESTIONS, 17)
