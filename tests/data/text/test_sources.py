"""Text documents on disk: files, paragraphs, data sets of the `datasets` library, and their errors."""

import numpy as np
import pytest

from subquad.data.text import sources
from subquad.data.text.sources import read_dataset, read_folder, read_tables, split_documents
from subquad.utils.errors import UserError

ROWS = {"text": ["a b", "c d", "é"], "number": [1, 2, 3]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "z.txt").write_bytes("\ufeffone\r\ntwo\r\n\r\nthree é\r\n".encode())
    (tmp_path / "b" / "a.txt").write_text("\n\nfour\n   \nfive\nsix")
    (tmp_path / "b" / "empty.txt").write_text("")
    (tmp_path / "notes.md").write_text("not read")
    return tmp_path


def test_files_are_documents_in_the_order_of_their_names(folder):
    texts = read_folder(folder, "file")
    assert list(texts) == ["\n\nfour\n   \nfive\nsix", "", "one\ntwo\n\nthree é\n"]
    assert len(texts) == 3


def test_paragraphs_are_documents_too(folder):
    texts = read_folder(folder, "paragraph")
    assert list(texts) == ["four\n", "five\nsix", "one\ntwo\n", "three é\n"]
    assert list(texts.take(np.array([3, 0]))) == ["three é\n", "four\n"]


def test_a_file_of_another_encoding_is_named(folder):
    (folder / "b" / "latin.txt").write_bytes(b"ok\n\ncaf\xe9")
    with pytest.raises(UserError, match=r"latin.txt is not UTF-8 \(byte 7\)"):
        list(read_folder(folder, "paragraph"))


def test_a_folder_without_text_is_named(tmp_path):
    with pytest.raises(UserError, match=r"has no \.txt files"):
        read_folder(tmp_path, "file")


def saved(kind, where):
    import datasets

    rows = datasets.Dataset.from_dict(ROWS)
    where.mkdir()
    match kind:
        case "saved":
            rows.save_to_disk(str(where))
        case "splits":
            datasets.DatasetDict({"train": rows, "test": rows.select([1])}).save_to_disk(str(where))
        case "parquet":
            rows.to_parquet(str(where / "train-00000-of-00001.parquet"))
            rows.select([1]).to_parquet(str(where / "test-00000-of-00001.parquet"))
        case "json":
            rows.to_json(str(where / "rows.jsonl"))
    return where


@pytest.fixture
def scratch(tmp_path):
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.mark.parametrize("kind", ["saved", "splits", "parquet", "json"])
def test_data_sets_are_read_whatever_their_form(tmp_path, scratch, kind):
    splits = read_dataset(saved(kind, tmp_path / "set"), "text", scratch)
    assert list(splits["train"]) == ROWS["text"]
    assert len(splits["train"]) == 3
    assert list(splits["train"].take(np.array([2, 0]))) == ["é", "a b"]
    assert ("test" in splits) == (kind in ("splits", "parquet"))
    assert "test" not in splits or list(splits["test"]) == ["c d"]


def test_one_file_is_a_data_set_too(tmp_path, scratch):
    [file] = saved("json", tmp_path / "set").iterdir()
    assert list(read_dataset(file, "text", scratch)["train"]) == ROWS["text"]


def test_rows_without_text_are_empty_documents(tmp_path, scratch):
    import datasets

    datasets.Dataset.from_dict({"text": ["a", None]}).save_to_disk(str(tmp_path / "set"))
    assert list(read_dataset(tmp_path / "set", "text", scratch)["train"]) == ["a", ""]


def test_what_is_wrong_with_a_data_set_is_named(tmp_path, scratch):
    place = saved("parquet", tmp_path / "set")
    for column in ("body", "number"):
        with pytest.raises(UserError, match=rf"no text in a column {column} \(it has text, number\)"):
            read_dataset(place, column, scratch)
    (place / "train-00000-of-00001.parquet").unlink()
    with pytest.raises(UserError, match=r"no split train \(it has test\)"):
        read_dataset(place, "text", scratch)
    [file] = place.iterdir()
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(UserError, match="cannot be read as a data set"):
        read_dataset(place, "text", scratch)


ROW = "text,label\nfine,a\n"


@pytest.mark.parametrize(
    ("files", "left_out"),
    [
        ({"train.csv": ROW, "test.csv": ROW, "more.csv": ROW}, "more.csv would be left out beside train.csv"),
        ({"a.csv": ROW, "b.csv": ROW, "sub/c.jsonl": '{"text": "x"}'}, "sub/c.jsonl would be left out beside a.csv"),
    ],
)
def test_no_table_of_a_folder_is_left_out(tmp_path, scratch, files, left_out):
    for name, content in files.items():
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_text(content)
    with pytest.raises(UserError, match=left_out):
        read_tables(tmp_path / "set", scratch)


def test_a_note_beside_tables_changes_nothing(tmp_path, scratch):
    place = saved("json", tmp_path / "set")
    (place / "rows.jsonl").unlink()
    (place / "train.csv").write_bytes('text,label\n"caf\xe9,NA\nb,b\n'.encode("latin-1"))
    (place / "readme.txt").write_text("a note")
    (place / "dataset_infos.json").write_text("{}")
    rows = read_tables(place, scratch, encoding="latin-1", quotes=False)["train"]
    assert rows["text"][:] == ['"caf\xe9', "b"]
    assert rows["label"][:] == ["NA", "b"]


def test_a_folder_has_the_subsets_of_its_readme(tmp_path, scratch):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(f"text\nof {name}\n")
    subsets = "".join(f"- config_name: {name}\n  data_files: {name}.csv\n" for name in "ab")
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{subsets}---\n")
    assert list(read_dataset(tmp_path, "text", scratch, "b")["train"]) == ["of b"]
    with pytest.raises(UserError, match=r"data.subset has to name one of its subsets: \['a', 'b'\]"):
        read_dataset(tmp_path, "text", scratch)
    with pytest.raises(UserError, match="was saved without subsets"):
        sources.dataset_folder(str(saved("saved", tmp_path / "set")), "b", tmp_path)


def test_the_state_changes_with_the_folders_of_the_files(tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "rows.csv").write_text(ROW)
    before = sources.state_of(tmp_path)
    (tmp_path / "test").rename(tmp_path / "dev")
    assert sources.state_of(tmp_path) != before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("text,label\ngreat, not bad,a\n", "the header has 2 fields and the first row more"),
        ('text\tlabel\n"great\ta\nbad\tb\nmore"\ta\n', "makes several lines one cell, 'great.*data.quotes=false"),
    ],
)
def test_rows_that_would_be_misread_are_refused(tmp_path, scratch, content, reason):
    (tmp_path / "train.csv").write_text(content)
    with pytest.raises(UserError, match=reason):
        read_tables(tmp_path / "train.csv", scratch)


def test_a_data_set_that_cannot_be_fetched_says_what_to_put_where(tmp_path, monkeypatch):
    import datasets

    def unreachable(name, *_, **__):
        raise ConnectionError(f"no route to {name}")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UserError, match=r"no route to some/set\).*put the folder at .*datasets/some--set--v1"):
        sources.fetch_dataset("some/set", "v1", tmp_path)
    assert not [path for path in (tmp_path / "datasets").iterdir() if path.is_dir()]
    assert sources.dataset_folder(str(tmp_path), None, tmp_path) == tmp_path


def test_a_fetched_data_set_is_kept(tmp_path, scratch, monkeypatch):
    import datasets

    made = datasets.DatasetDict({"train": datasets.Dataset.from_dict(ROWS)})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: made)
    sources.fetch_dataset("some/set", None, tmp_path)
    monkeypatch.undo()
    place = sources.dataset_folder("some/set", None, tmp_path)
    assert [path.name for path in (tmp_path / "datasets").iterdir() if path.is_dir()] == ["some--set"]
    assert list(read_dataset(place, "text", scratch)["train"]) == ROWS["text"]


def test_documents_are_split_by_seed_and_fraction():
    parts = split_documents(100, {"val": 0.1, "test": 0.2}, 0)
    assert {name: len(part) for name, part in parts.items()} == {"train": 70, "val": 10, "test": 20}
    assert sorted(np.concatenate(list(parts.values()))) == list(range(100))
    assert all((np.diff(part) > 0).all() for part in parts.values())
    assert np.array_equal(parts["val"], split_documents(100, {"val": 0.1, "test": 0.2}, 0)["val"])
    assert not np.array_equal(parts["val"], split_documents(100, {"val": 0.1, "test": 0.2}, 1)["val"])
    assert {len(part) for part in split_documents(3, {"val": 0.01, "test": 0.01}, 0).values()} == {1}


def test_too_few_documents_are_refused():
    with pytest.raises(UserError, match="2 documents, too few"):
        split_documents(2, {"val": 0.1, "test": 0.1}, 0)
    with pytest.raises(UserError, match="leave no document to train on"):
        split_documents(10, {"val": 0.5, "test": 0.5}, 0)
