"""A user's own texts and tokens: forms of files, columns, splits, fingerprints, and errors that name the place."""

import json

import numpy as np
import pytest

from subquad.data.text.own_texts import OwnTexts
from subquad.data.text.own_tokens import OwnTokens
from subquad.utils.errors import UserError

BATCHING = {"batch_size": 4, "seed": 0}


def rows(count=24, sep=",", labels=("good", "bad")):
    return [f"row {i} is {('nice', 'poor')[i % 2]}{sep}{labels[i % 2]}" for i in range(count)]


def table(tmp_path, lines, name="train.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes("\n".join(lines).encode(encoding))
    return str(path)


def opened(family, tmp_path, **settings):
    settings = ({"tokenizer": "bytes"} if family is OwnTexts else {}) | settings
    data = family(root=str(tmp_path / "root"), **BATCHING, **settings)
    data.prepare_data()
    return data


def texts(data, split="all"):
    """The texts of byte tokens, without <s> and </s>."""
    found = data._cache.splits["all"] if split == "all" else data.splits[split]
    return [bytes((np.asarray(found[i][1:-1]) - 1).astype(np.uint8)).decode() for i in range(len(found))]


# texts


@pytest.mark.parametrize(
    ("name", "lines", "settings"),
    [
        ("a.csv", ["text,label", *rows()], {}),
        ("a.csv", ["\ufeffsentence,Label\r", *(f"{row}\r" for row in rows())], {}),
        ("a.csv", ["text;label", *rows(sep=";")], {}),
        ("a.tsv", ["id\ttext\tlabel", *(f"{i}\t{row}" for i, row in enumerate(rows(sep="\t")))], {}),
        ("a.csv", ["comment,sort", *rows()], {"text": "comment", "label": "sort"}),
        ("a.jsonl", [json.dumps(dict(zip(("text", "label"), row.split(","), strict=True))) for row in rows()], {}),
    ],
)
def test_tables_of_all_forms_are_read_alike(tmp_path, name, lines, settings):
    data = opened(OwnTexts, tmp_path, train=table(tmp_path, lines, name), **settings)
    assert texts(data) == [row.split(",")[0] for row in rows()]
    assert data._cache.facts["classes"] == ["bad", "good"]
    assert data._cache.splits["all"].targets.tolist() == [1, 0] * 12
    assert (data.spec.max_len, data.spec.vocab, data.spec.classes) == (16, 260, 2)


def test_words_that_pandas_takes_for_missing_and_lines_in_quotes_are_text(tmp_path):
    lines = [
        "text,label",
        '"a ""word"",\nand more",NA',
        "NA,null",
        "null,NA",
        "NaN,null",
        *rows(8, labels=("NA", "null")),
    ]
    data = opened(OwnTexts, tmp_path, train=table(tmp_path, lines))
    assert texts(data)[:4] == ['a "word",\nand more', "NA", "null", "NaN"]
    assert data._cache.facts["classes"] == ["NA", "null"]


def test_long_texts_are_cut_and_said(tmp_path, caplog):
    train = table(tmp_path, ["text,label", f"{'long ' * 20},good", *rows()])
    for _ in range(2):  # also where the cache is there
        caplog.clear()
        data = opened(OwnTexts, tmp_path, train=train, max_len=30)
        assert len(data.splits["train"])
        assert data.spec.max_len == 30
        assert "1 of 25 texts fill data.max_len=30 tokens and may be cut." in caplog.text


def test_an_encoding_may_be_told(tmp_path):
    train = table(tmp_path, ["text,label", "café,good", *rows()], encoding="latin-1")
    assert texts(opened(OwnTexts, tmp_path, train=train, encoding="latin-1"))[0] == "café"


def test_files_of_a_folder_are_read_as_one_file_is(tmp_path):
    (folder := tmp_path / "set").mkdir()
    for name in ("train.tsv", "test.tsv"):
        lines = ["text\tlabel", '"café\tgood', "NA\tbad", 'the end"\tgood', *rows(sep="\t")]
        table(folder, lines, name, encoding="latin-1")
    settings = {"dataset": str(folder), "quotes": False, "encoding": "latin-1"}
    assert texts(opened(OwnTexts, tmp_path, **settings), "test")[:3] == ['"café', "NA", 'the end"']


def test_numbers_are_classes_or_targets(tmp_path):
    numbers = table(tmp_path, ["text,label", *rows(labels=("10", "2.0"))])
    assert opened(OwnTexts, tmp_path, train=numbers)._cache.facts["classes"] == ["2", "10"]
    data = opened(OwnTexts, tmp_path, train=numbers, kind="regression")
    assert (data.spec.classes, data.splits["train"].targets.dtype) == (None, np.float32)
    assert set(data.splits["test"].targets) == {10, 2}


@pytest.mark.parametrize("labels", [("1_11", "11_1"), ("90071992547409931", "90071992547409932")])
def test_labels_that_a_float_makes_equal_are_two_classes(tmp_path, labels):
    data = opened(OwnTexts, tmp_path, train=table(tmp_path, ["text,label", *rows(labels=labels)]))
    assert data._cache.facts["classes"] == sorted(labels)


def test_pairs_are_joined_and_a_tokenizer_is_trained_on_training_rows(tmp_path):
    lines = ["a,b,label", *(f"left {i},{row}" for i, row in enumerate(rows()))]
    data = opened(OwnTexts, tmp_path, train=table(tmp_path, lines), text=["a", "b"])
    first = data._cache.splits["all"][0] - 1
    assert bytes(first[1:7].astype(np.uint8)) == b"left 0"
    assert first[7:9].tolist() == [257, 257]
    assert bytes(first[9:-1].astype(np.uint8)) == b"row 0 is nice"
    trained = opened(OwnTexts, tmp_path, train=data.tables.files["train"], text=["a", "b"], tokenizer=None, vocab=300)
    assert 261 < trained.spec.vocab <= 300


def test_numbers_that_are_one_class_are_said(tmp_path, caplog):
    data = opened(OwnTexts, tmp_path, train=table(tmp_path, ["text,label", *rows(labels=("7", "8")), "fine,007"]))
    assert data.class_names == ["7", "8"]
    assert "The labels 7 and 007 are read as one class, 7." in caplog.text


def test_doubtful_classes_are_said(tmp_path, caplog):
    opened(OwnTexts, tmp_path, train=table(tmp_path, ["text,label", *rows()])).load()
    assert not caplog.text
    opened(OwnTexts, tmp_path, train=table(tmp_path, ["text,label", *rows(), "fine,Good"])).load()
    assert "Good and good are two classes; if they are one, write them alike." in caplog.text
    assert "1 of 3 classes have no row in test (such as Good)" in caplog.text


def test_files_of_splits_are_used_and_equal_rows_are_said(tmp_path, caplog):
    train = table(tmp_path, ["text,label", *rows(), "twice,good", "twice,bad"])
    test = table(tmp_path, ["text,label", "new,good", "row 3 is poor,bad"], "test.csv")
    data = opened(OwnTexts, tmp_path, train=train, test=test)
    assert texts(data, "test") == ["new", "row 3 is poor"]
    assert sorted(texts(data, "train") + texts(data, "val")) == sorted(texts(data)[:26])
    assert "1 of 2 rows of test are in train or val too (such as" in caplog.text
    assert f"Equal rows with different labels: 1 (such as {train}, row 25 and {train}, row 26)" in caplog.text
    paper = opened(OwnTexts, tmp_path, train=train, test=test, protocol="paper")
    assert (len(paper.splits["train"]), paper.splits["val"].targets.tolist()) == (26, [1, 0])


def test_the_content_is_the_fingerprint(tmp_path):
    def fingerprint(*lines, **settings):
        return opened(
            OwnTexts, tmp_path, train=table(tmp_path, ["text,label", *rows(), *lines]), **settings
        ).fingerprint

    before = fingerprint("x,good")
    assert fingerprint("x,good") == before == fingerprint("x,good", split_seed=1)
    assert len({before, fingerprint("y,good"), fingerprint("x,bad"), fingerprint()}) == 4


def test_data_sets_of_the_library_have_named_classes_and_splits(tmp_path, caplog):
    import datasets

    def part(count, **more):
        known = {"sentence": [f"{count} {i}" for i in range(count)], "label": [i % 2 for i in range(count)], **more}
        return datasets.Dataset.from_dict(known).cast_column("label", datasets.ClassLabel(names=["z", "y"]))

    datasets.DatasetDict({"train": part(8), "validation": part(2), "test": part(4)}).save_to_disk(str(tmp_path / "set"))
    data = opened(OwnTexts, tmp_path, dataset=str(tmp_path / "set"))
    assert {name: len(found) for name, found in data.splits.items()} == {"train": 8, "val": 2, "test": 4}
    assert data._cache.facts["classes"] == ["y", "z"]
    half = datasets.DatasetDict({"train": part(8), "test": part(2, label=[1, -1])})
    half.save_to_disk(str(tmp_path / "half"))
    with pytest.raises(UserError, match="half, split test, row 2 has no value in the column label"):
        opened(OwnTexts, tmp_path, dataset=str(tmp_path / "half"))
    hidden = datasets.DatasetDict({"train": part(10), "test": part(2, label=[-1, -1])})
    hidden.save_to_disk(str(tmp_path / "hidden"))
    data = opened(OwnTexts, tmp_path, dataset=str(tmp_path / "hidden"))
    assert {name: len(found) for name, found in data.splits.items()} == {"train": 6, "val": 2, "test": 2}
    assert "split test is not read, because its labels are hidden" in caplog.text
    datasets.DatasetDict({"train": part(10), "dev_matched": part(2)}).save_to_disk(str(tmp_path / "others"))
    opened(OwnTexts, tmp_path, dataset=str(tmp_path / "others"))
    assert "only train, val and test are read, not dev_matched" in caplog.text
    with pytest.raises(UserError, match=r"data.dataset=.*org--name does not exist.*scripts/prepare.py"):
        opened(OwnTexts, tmp_path, dataset="org/name")


@pytest.mark.parametrize(
    ("lines", "settings", "message"),
    [
        (["text,label", *rows(), "x,"], {}, r"train\.csv, row 25 has no value in the column label"),
        (["text,label", *rows(), "x"], {}, r"train\.csv, row 25 has no value in the column label"),
        (["text,label", *rows(), "", "a,good"], {}, r"train\.csv, row 25 has no "),
        (["text,label", *rows(), " ,good"], {}, r"train\.csv, row 25 has no text in the column text"),
        (["text,label", *rows(), "a,b,good"], {}, r"train\.csv cannot be read .*Expected 2 fields in line 26, saw 3"),
        (["text,label", *rows(), '"x,good'], {}, "a quotation mark is never closed, and data.quotes=false"),
        (rows(), {}, "has the columns 'row 0 is nice', 'good', and none named label, .*add a first line"),
        (["text,label"], {}, "it has no rows"),
        (["a,b,label", *(f"1,{row}" for row in rows())], {}, "'a', 'b', 'label' and none is named text, .*data.text="),
        (["text,label", *rows()], {"text": "c"}, "columns 'text', 'label', not c; name the column by data.text"),
        (["text,label", *rows(labels=("a", "a"))], {}, "All 24 training rows have the class a"),
        (["text,label", *rows(labels=("1.5", "2"))], {}, r"row 1 has 1\.5 .*data.kind=regression"),
        (["text,label", *rows()], {"kind": "regression"}, "row 1 has 'good' .* no finite number"),
        (["text,label", *(f"x{i},y{i}" for i in range(9))], {}, "9 training rows have 9 classes"),
        (["text,label", "a,x", "b,y"], {}, "too few different rows .2 of 2."),
        (["text,label", *rows()], {"dataset": "x"}, "needs data.train=<file>"),
        (["text,label", *rows()], {"text": ["a", "b", "c"]}, "names 3 columns"),
        (["text,label", *rows()], {"max_len": 4}, "at least 8 tokens"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused_with_the_place(tmp_path, lines, settings, message):
    with pytest.raises(UserError, match=message):
        opened(OwnTexts, tmp_path, train=table(tmp_path, lines), **settings)


def test_a_line_of_another_encoding_and_a_class_without_training_rows_are_named(tmp_path):
    latin = table(tmp_path, ["text,label", *rows(), "café,good"], "latin.csv", "latin-1")
    with pytest.raises(UserError, match=r"Line 26 of .*latin\.csv is not UTF-8; convert .*data.encoding"):
        opened(OwnTexts, tmp_path, train=latin)
    train = table(tmp_path, ["text,label", *rows()])
    test = table(tmp_path, ["text,label", *rows(labels=("good", "ugly"))], "test.csv")
    with pytest.raises(UserError, match=r"test\.csv, row 2 has the class ugly, .*\(12 rows"):
        opened(OwnTexts, tmp_path, train=train, test=test)
    with pytest.raises(UserError, match=r"data.test=.*/no\.csv does not exist"):
        opened(OwnTexts, tmp_path, train=train, test=str(tmp_path / "no.csv"))


# tokens


def arrays(folder, **changes):
    rng = np.random.default_rng(0)
    made = {"tokens": rng.integers(1, 9, (20, 7)), "lengths": rng.integers(1, 8, 20), "labels": np.arange(20) % 2}
    folder.mkdir(exist_ok=True)
    for name, array in (made | changes).items():
        if array is not None:
            np.save(folder / f"{name}.npy", array)
    return made


def test_arrays_and_lists_give_the_same_sequences(tmp_path):
    made = arrays(tmp_path / "a")
    sequences = [row[:length] for row, length in zip(made["tokens"], made["lengths"], strict=True)]
    lines = [json.dumps({"ids": row.tolist(), "y": i % 2}) for i, row in enumerate(sequences)]
    padded = np.where(np.arange(7) < made["lengths"][:, None], made["tokens"], 0)
    arrays(tmp_path / "b", tokens=padded, lengths=None)
    for train in (tmp_path / "a", tmp_path / "b", table(tmp_path, lines, "a.jsonl")):
        data = opened(OwnTokens, tmp_path, train=str(train))
        found = data._cache.splits["all"]
        assert [found[i].tolist() for i in range(20)] == [row.tolist() for row in sequences]
        assert (data.spec.max_len, data.spec.vocab, data.spec.classes) == (7, 9, 2)
    short = opened(OwnTokens, tmp_path, train=str(tmp_path / "a"), max_len=3, vocab=30)
    assert (short.spec.max_len, short.spec.vocab, short.splits["train"].lengths.max()) == (3, 30, 3)


def changed(name, place, value):
    array = arrays_of()[name]
    array[place] = value
    return {name: array}


def arrays_of():
    return {"tokens": np.ones((20, 7), int), "lengths": np.full(20, 7), "labels": np.arange(20) % 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (changed("tokens", (3, 2), 0), "tk, row 4, column tokens has the id 0 at position 3; ids are from 1"),
        (changed("tokens", (3, 2), -1), "row 4, column tokens has the id -1 at position 3"),
        (changed("lengths", 4, 9), r"tk, row 5 has the length 9 where tokens\.npy has 7 columns"),
        ({"lengths": np.full(20, 7.0)}, r"lengths\.npy has float64 numbers; save whole ones"),
        ({"tokens": np.ones((20, 7))}, "row 1, column tokens is no list of whole numbers"),
        ({"tokens": np.ones((9, 7), int), "lengths": None}, r"9 rows in tokens\.npy and \[20\] labels"),
        ({"labels": None}, r"20 rows in tokens\.npy and \[0\] labels"),
        ({"tokens": np.ones(7, int)}, r"has the shape \[7\], not \[rows, longest\]"),
    ],
)
def test_bad_arrays_are_refused_with_the_place(tmp_path, changes, message):
    arrays(tmp_path / "tk", **arrays_of() | changes)
    with pytest.raises(UserError, match=message):
        opened(OwnTokens, tmp_path, train=str(tmp_path / "tk"))


def test_damaged_arrays_and_a_small_vocabulary_are_refused(tmp_path):
    arrays(tmp_path / "tk")
    with pytest.raises(UserError, match=r"data.vocab=3 is too small for the id 8; choose 9 or more"):
        _ = opened(OwnTokens, tmp_path, train=str(tmp_path / "tk"), vocab=3).spec
    (tmp_path / "tk" / "tokens.npy").write_bytes(b"abc")
    with pytest.raises(UserError, match=r"tokens\.npy cannot be read"):
        opened(OwnTokens, tmp_path, train=str(tmp_path / "tk"))
