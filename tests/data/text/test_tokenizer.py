"""Tokenizers: the ids of models, independence of the number of threads, and errors of unsuitable tokenizers."""

import json
import subprocess
import sys

import numpy as np
import pytest

from subquad.data.text.tokenizer import (
    SPECIAL,
    Tokenizer,
    Vocabulary,
    fetch_tokenizer,
    pieces,
    tokenizer_folder,
    train_tokenizer,
)
from subquad.utils.errors import UserError

TEXTS = [
    "the cat sat on the mat\n\nnaïve <s> cats and <mask> mats\n" * 5,
    "the dog sat\n",
    "one two three two one\n" * 9,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return train_tokenizer(TEXTS, 300, tmp_path_factory.mktemp("tokenizer") / "own")


@pytest.fixture(scope="module")
def own(folder):
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def moved(folder, tmp_path_factory):
    """A tokenizer with the same tokens but RoBERTa's ids: <s> is 0 and <pad> is 1."""
    target = tmp_path_factory.mktemp("moved")
    stored = json.loads((folder / "tokenizer.json").read_text())
    exchange = {0: 1, 1: 0}
    vocab = stored["model"]["vocab"]
    stored["model"]["vocab"] = {token: exchange.get(place, place) for token, place in vocab.items()}
    for token in stored["added_tokens"]:
        token["id"] = exchange.get(token["id"], token["id"])
    stored["added_tokens"].sort(key=lambda token: token["id"])
    (target / "tokenizer.json").write_text(json.dumps(stored))
    (target / "tokenizer_config.json").write_text((folder / "tokenizer_config.json").read_text())
    return Tokenizer(target)


def test_every_text_comes_back_from_its_tokens(own):
    for text in [*TEXTS, "Ünïcode 漢字\t\r\n", " <s> </s> <pad> "]:
        [ids] = own.encode([text])
        assert own.backend.decode(ids.tolist(), skip_special_tokens=False) == text
        assert not set(ids.tolist()) & set(own.vocabulary.special)


def test_special_tokens_have_the_first_ids_and_padding_is_zero(own):
    assert own.vocabulary.special == (0, 1, 2, 3, 4)
    assert (own.vocabulary.start, own.vocabulary.end, own.vocabulary.mask) == (1, 2, 4)
    assert own.vocabulary.size == len(own.backend.get_vocab())
    assert 261 < own.vocabulary.size <= 300
    assert own.vocabulary.dtype is np.uint16
    assert Vocabulary.from_facts(json.loads(json.dumps(own.vocabulary.facts))) == own.vocabulary


def test_padding_that_is_elsewhere_changes_places_with_zero(own, moved):
    assert moved.padding == 1
    assert moved.vocabulary == own.vocabulary
    for mine, other in zip(own.encode(TEXTS), moved.encode(TEXTS), strict=True):
        assert np.array_equal(mine, other)


def test_a_foreign_token_with_id_zero_is_not_padding(folder, tmp_path):
    stored = json.loads((folder / "tokenizer.json").read_text())
    vocab = stored["model"]["vocab"]
    vocab["a"], vocab["<pad>"] = 0, vocab["a"]
    stored["added_tokens"][0]["id"] = vocab["<pad>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    (tmp_path / "tokenizer_config.json").write_text((folder / "tokenizer_config.json").read_text())
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode(["a"])[0].tolist() == [tokenizer.padding] == [vocab["<pad>"]]
    assert 0 in tokenizer.vocabulary.special
    assert tokenizer.padding not in tokenizer.vocabulary.special


def test_a_trained_tokenizer_is_kept_and_another_of_the_same_texts_is_the_same(folder, tmp_path):
    again = train_tokenizer(TEXTS, 300, tmp_path / "again")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    train_tokenizer(["other"], 300, again)
    assert (again / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


@pytest.mark.slow
def test_training_does_not_depend_on_threads_or_hashes(folder, tmp_path):
    script = (
        "import sys; from pathlib import Path; from subquad.data.text.tokenizer import train_tokenizer;"
        f"train_tokenizer({TEXTS!r}, 300, Path(sys.argv[1]))"
    )
    environment = {"RAYON_NUM_THREADS": "3", "PYTHONHASHSEED": "3"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "other")], check=True, env=environment)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "other" / name).read_bytes() == (folder / name).read_bytes()


def test_documents_are_the_same_whole_or_in_pieces(own):
    long = "alpha beta\n\n  gamma\tdelta\n" * 12_000
    texts = [long, "x", "", long[:1001], "y" * 300_000]
    assert len(list(pieces(long))) > 2
    whole = own.encode(texts)
    for one, other in zip(own.documents(iter(texts)), whole, strict=True):
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.parametrize(
    "text", ["", "a", "ab " * 7, "a\n" * 30, "abcdefghijklmnopqrstuvwxyz", "\n" * 25, "abcdef\n" * 3]
)
def test_pieces_are_short_and_join_to_the_text(text):
    parts = list(pieces(text, 10))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= 10
    assert all(part[0] in "\n " or ("\n" not in text and " " not in text) for part in parts[1:])


def test_a_tokenizer_without_a_mask_is_refused(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    names = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL}
    names.pop("mask_token")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    with pytest.raises(UserError, match="has no mask_token; choose one made for masked language models"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "{}"])
def test_a_damaged_tokenizer_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match="holds no tokenizer that can be read"):
        Tokenizer(tmp_path)


def test_a_vocabulary_smaller_than_the_bytes_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"data.vocab is 260; all bytes and the special tokens need 261"):
        train_tokenizer(TEXTS, 260, tmp_path / "t")


def test_a_name_is_a_folder_or_published(tmp_path):
    assert tokenizer_folder(str(tmp_path), tmp_path / "root") == tmp_path
    assert tokenizer_folder("FacebookAI/roberta-base", tmp_path) == tmp_path / "tokenizers" / "FacebookAI--roberta-base"
    with pytest.raises(UserError, match="neither a folder nor the name"):
        tokenizer_folder(str(tmp_path / "none"), tmp_path)


def test_a_tokenizer_that_cannot_be_fetched_says_what_to_put_where(tmp_path, monkeypatch):
    import transformers

    def unreachable(name, trust_remote_code):
        raise OSError(f"no route to {name}\nand more")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", unreachable)
    with pytest.raises(UserError, match=r"no route to some/name\); put its tokenizer.json.*tokenizers/some--name"):
        fetch_tokenizer("some/name", tmp_path)
    assert not [path for path in (tmp_path / "tokenizers").iterdir() if path.is_dir()]


def test_a_fetched_tokenizer_is_kept(own, folder, tmp_path, monkeypatch):
    import transformers

    opened = transformers.AutoTokenizer.from_pretrained(str(folder))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name, **_: opened)
    fetch_tokenizer("some/name", tmp_path)
    monkeypatch.undo()
    assert Tokenizer(tokenizer_folder("some/name", tmp_path)).vocabulary == own.vocabulary
