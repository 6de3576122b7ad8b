"""Tokenised labelled texts: layout, truncation, protocols, and the tokenizer of a language model."""

from pathlib import Path

import numpy as np
import pytest

from subquad.data.text.glue import Glue
from subquad.data.text.glue_files import Labelled, write_synthetic
from subquad.data.text.masked_text import MaskedText
from subquad.data.text.reviews import Reviews
from subquad.data.text.sentences import lay_out, shares
from subquad.data.text.tokenizer import Tokenizer, train_tokenizer
from subquad.utils.errors import UserError

SMALL = {"vocab": 400, "max_len": 64, "batch_size": 4, "seed": 0, "synthetic": True}


def prepared(kind, root, **settings):
    data = kind(root=str(root), **SMALL | settings)
    data.prepare_data()
    return data


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("sentences")


@pytest.fixture(scope="module")
def tokenizer(root):
    return Tokenizer(Path(prepared(Glue, root, name="qnli")._cache.facts["tokenizer"]))


def read(tokenizer, row):
    return tokenizer.backend.decode([int(i) for i in row], skip_special_tokens=False)


def test_rows_are_texts_between_their_marks(root, tokenizer):
    data = prepared(Glue, root, name="qnli")
    texts = data.texts()
    for name in ("train", "test"):
        rows = data.splits[name]
        assert rows.targets.tolist() == texts[name].targets.tolist()
        for i in range(len(rows)):
            assert read(tokenizer, rows[i]) == f"<s>{texts[name].first[i]}</s></s>{texts[name].second[i]}</s>"
    single = prepared(Glue, root, name="sst2")
    own = Tokenizer(Path(single._cache.facts["tokenizer"]))
    assert read(own, single.splits["test"][3]) == f"<s>{single.texts()['test'].first[3]}</s>"


def test_labels_follow_from_the_words(root):
    for name, word in (("sst2", "moving"), ("qnli", None), ("qqp", None)):
        texts = prepared(Glue, root, name=name).texts()["test"]
        for i, label in enumerate(texts.targets):
            if word:
                assert (word in texts.first[i]) == label
            else:
                same = texts.second[i].split()[1] in texts.first[i]
                assert same == (label == (1 if name == "qqp" else 0))


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [
        ((3, 4), (3, 4)),
        ((5, 5), (5, 5)),
        ((8, 5), (5, 5)),
        ((9, 2), (8, 2)),
        ((2, 9), (2, 8)),
        ((50, 60), (5, 5)),
        ((0, 99), (0, 10)),
    ],
)
def test_the_longer_of_two_texts_is_cut_first(lengths, kept):
    assert shares(*lengths, 10) == kept
    assert sum(shares(*lengths, 11)) == min(sum(lengths), 11)


def test_rows_are_cut_to_the_maximum_and_keep_their_marks(tokenizer):
    first, second = "river " * 30, "castle " * 5
    rows = lay_out(Labelled([first, "a"], [second, "b"], np.array([0, 1])), tokenizer, 16)
    assert len(rows[0]) == 16
    assert read(tokenizer, rows[0]).count("castle") == 5
    assert read(tokenizer, rows[0]).endswith("</s>")
    assert read(tokenizer, rows[1]) == "<s>a</s></s>b</s>"
    one = lay_out(Labelled([first], None, np.array([0])), tokenizer, 16)
    assert len(one[0]) == 16
    assert (one[0][0], one[0][-1]) == (tokenizer.vocabulary.start, tokenizer.vocabulary.end)


def test_the_paper_selects_on_what_it_reports_and_clean_does_not(root):
    paper, clean = (
        prepared(Glue, root, name="qqp"),
        prepared(Glue, root, name="qqp", protocol="clean", val_fraction=0.25),
    )
    assert np.array_equal(paper.splits["val"].values, paper.splits["test"].values)
    assert {name: len(rows) for name, rows in clean.splits.items()} == {"train": 72, "val": 24, "test": 32}
    parts = [{rows[i].tobytes() for i in range(len(rows))} for rows in clean.splits.values()]
    assert not parts[0] & parts[1]
    assert not parts[1] & parts[2]
    other = prepared(Glue, root, name="qqp", protocol="clean", val_fraction=0.25, split_seed=1)
    assert not np.array_equal(other.splits["val"].targets, clean.splits["val"].targets)
    few = prepared(Glue, root, name="qqp", cases=20)
    assert {name: len(rows) for name, rows in few.splits.items()} == {"train": 20, "val": 20, "test": 20}


def test_reviews_are_those_of_the_byte_task(root):
    data = prepared(Reviews, root, max_len=512)
    own = Tokenizer(Path(data._cache.facts["tokenizer"]))
    rows, bytewise = data.splits["train"], data.raw.splits["train"]
    assert len(rows) == 48
    for i in range(len(rows)):
        assert read(own, rows[i])[3:-4].encode() == (np.asarray(bytewise[i]) - 1).astype(np.uint8).tobytes()
    assert rows.targets.tolist() == bytewise.targets.tolist()
    assert max(len(prepared(Reviews, root, max_len=20).splits["test"][i]) for i in range(48)) == 20


def test_the_tokenizer_of_a_language_model_is_used(root, tokenizer):
    folder = prepared(Glue, root, name="qnli")._cache.facts["tokenizer"]
    data = prepared(Glue, root, name="sst2", tokenizer=folder)
    assert data.spec.tokenizer == tokenizer.vocabulary.fingerprint
    assert data.spec.vocab == tokenizer.vocabulary.size
    assert data.spec.tokenizer != prepared(Glue, root, name="sst2").spec.tokenizer
    assert read(tokenizer, data.splits["train"][0]) == f"<s>{data.texts()['train'].first[0]}</s>"
    assert data.fingerprint != prepared(Glue, root, name="sst2").fingerprint


def test_prepared_rows_are_opened_without_their_tokenizer(root, monkeypatch):
    prepared(Glue, root, name="sst2")
    monkeypatch.setattr(Tokenizer, "__init__", lambda *_: pytest.fail("the texts were cut into tokens again"))
    assert len(prepared(Glue, root, name="sst2", protocol="clean").splits["val"]) == 10


def test_made_up_texts_of_all_kinds_share_a_made_up_tokenizer(tmp_path):
    """The synthetic tokenizer replaces a published one, so that weights of a language model fit."""
    published = {"tokenizer": "FacebookAI/roberta-base"}
    sets = [prepared(Glue, tmp_path, name="sst2", **published), prepared(Reviews, tmp_path, **published)]
    text = MaskedText(root=str(tmp_path), max_len=16, val_fraction=0.1, test_fraction=0.1, batch_size=4, seed=0,
                      synthetic=True, **published)  # fmt: skip
    text.fetch()
    text.prepare_data()
    assert {data.spec.tokenizer for data in sets} == {text.spec.tokenizer}
    own = train_tokenizer(["another text"], 270, tmp_path / "own")
    assert prepared(Glue, tmp_path, name="sst2", tokenizer=str(own)).spec.tokenizer == (
        Tokenizer(own).vocabulary.fingerprint
    )


def test_too_short_lengths_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"data\.max_len is 7; sentences need at least 8"):
        Glue(root=str(tmp_path), name="sst2", **SMALL | {"max_len": 7})


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(UserError, match=r"SST-2/train.tsv is missing; run"):
        prepared(Glue, tmp_path, name="sst2", synthetic=False)
    with pytest.raises(UserError, match=r"aclImdb_v1.tar.gz is missing"):
        prepared(Reviews, tmp_path, synthetic=False)
    folder = str(write_synthetic(tmp_path, "sst2"))
    with pytest.raises(
        UserError, match=r"tokenizers/some--name is missing; run .* task=glue/sst2 data.tokenizer=some/name"
    ):
        prepared(Glue, tmp_path, name="sst2", tokenizer="some/name", folder=folder, synthetic=False)


def test_stand_ins_are_not_taken_for_the_genuine_set(tmp_path):
    folder = write_synthetic(tmp_path / "glue", "sst2")
    with pytest.raises(UserError, match="96 rows where SST-2 has 67,349"):
        prepared(Glue, tmp_path, name="sst2", folder=str(folder), synthetic=False)
    assert not list(tmp_path.rglob("meta.json"))
