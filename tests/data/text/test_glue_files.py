"""GLUE on disk: tab-separated and parquet files give the same rows, and errors of files are reported."""

import zipfile

import numpy as np
import pandas as pd
import pytest

from subquad.data.archives import take
from subquad.data.text import glue_files
from subquad.data.text.glue_files import TABLES
from subquad.utils.errors import UserError


def as_parquet(folder, target, name):
    """The same rows as on Hugging Face: numbers for labels, one file or more per split."""
    table = TABLES[name]
    for split, other in (("train", "train"), ("dev", "validation")):
        rows = glue_files.read(glue_files.files(folder, name)[split], name, split, genuine=False)
        columns = dict(zip(table.columns, rows[:2], strict=False)) | {"label": rows.targets}
        frame = pd.DataFrame(columns | {"idx": range(len(rows.targets))})
        (target / name).mkdir(parents=True, exist_ok=True)
        for number, part in enumerate((frame[:10], frame[10:])):
            part.to_parquet(target / name / f"{other}-{number:05}-of-00002.parquet")
    return target


@pytest.mark.parametrize("name", TABLES)
def test_both_forms_hold_the_same_rows(tmp_path, name):
    folder = glue_files.write_synthetic(tmp_path / "tsv", name)
    other = as_parquet(folder, tmp_path / "parquet", name)
    for split in ("train", "dev"):
        one = glue_files.read(glue_files.files(folder, name)[split], name, split, genuine=False)
        same = glue_files.read(glue_files.files(other, name)[split], name, split, genuine=False)
        assert one[:2] == same[:2]
        assert np.array_equal(one.targets, same.targets)
        assert set(one.targets) == {0, 1}
        assert (one.second is None) == (name == "sst2")


def written(folder, name, *lines, ending="\n"):
    table = TABLES[name]
    names = "\t".join(["index", *table.columns, table.label])
    for file in ("train.tsv", "dev.tsv"):
        (folder / table.folder).mkdir(parents=True, exist_ok=True)
        (folder / table.folder / file).write_bytes(ending.join([names, *lines, ""]).encode())
    return glue_files.files(folder, name)["train"]


def test_texts_are_taken_as_they_are(tmp_path):
    paths = written(
        tmp_path, "qnli", '0\t"a\tis "" b\tentailment', "1\tnaïve \\n\t\tnot_entailment", "2\tx\r\ty\tentailment"
    )
    rows = glue_files.read(paths, "qnli", "train", genuine=False)
    assert rows.first == ['"a', "naïve \\n", "x\r"]
    assert rows.second == ['is "" b', "", "y"]
    assert rows.targets.tolist() == [0, 1, 0]
    assert rows.targets.dtype == np.int64


def test_windows_line_ends_are_no_text(tmp_path):
    rows = glue_files.read(written(tmp_path, "sst2", "0\ta b\t1", ending="\r\n"), "sst2", "train", genuine=False)
    assert (rows.first, rows.targets.tolist()) == (["a b"], [1])


def test_spaces_around_a_column_name_are_no_part_of_it(tmp_path):
    paths = written(tmp_path, "sst2", "0\ta b\t1")
    paths[0].write_bytes(paths[0].read_bytes().replace(b"sentence", b" sentence\r"))
    assert glue_files.read(paths, "sst2", "train", genuine=False).first == ["a b"]


@pytest.mark.parametrize(
    ("name", "lines", "cause"),
    [
        ("sst2", ["0\ta\t1", "1\tb\t2"], "label '2' in line 3"),
        ("qnli", ["0\ta\tb\tneutral"], "label 'neutral' in line 2"),
        ("qqp", ["0\ta\tb\t1", "1\ta"], "1 whole rows and 1, which is no QQP"),
        ("sst2", [], "0 whole rows"),
    ],
)
def test_wrong_rows_are_named(tmp_path, name, lines, cause):
    with pytest.raises(UserError, match=cause):
        glue_files.read(written(tmp_path, name, *lines), name, "train", genuine=False)


def test_row_counts_are_the_published_ones(tmp_path):
    for name in TABLES:
        folder = glue_files.write_synthetic(tmp_path, name)
        with pytest.raises(
            UserError, match=r"has 96 rows where .* has [\d, or]+ \(none incomplete\); use the published one"
        ):
            glue_files.read(glue_files.files(folder, name)["train"], name, "train")


def test_incomplete_rows_are_left_out_where_the_published_number_remains(tmp_path, monkeypatch):
    monkeypatch.setitem(TABLES["qqp"].rows, "train", (2, 3))
    whole = ["0\ta\tb\t1", "1\tc\td\t0"]
    assert glue_files.read(written(tmp_path, "qqp", *whole, "2\te"), "qqp", "train").first == ["a", "c"]
    assert len(glue_files.read(written(tmp_path, "qqp", *whole, whole[0]), "qqp", "train").first) == 3
    with pytest.raises(UserError, match=r"has 1 rows where QQP has 2 or 3 \(1 incomplete\)"):
        glue_files.read(written(tmp_path, "qqp", whole[0], "2\te"), "qqp", "train")


def test_a_file_without_labels_or_of_another_task_is_named(tmp_path):
    [path] = written(tmp_path, "qnli", "0\ta\tb\tentailment")
    path.write_text("index\tquestion\tsentence\n0\ta\tb\n")
    with pytest.raises(UserError, match="has the columns index, question, sentence and not question, sentence, label"):
        glue_files.read([path], "qnli", "train")


def test_another_encoding_is_named(tmp_path):
    [path] = written(tmp_path, "sst2", "0\ta\t1")
    path.write_bytes(path.read_bytes() + b"1\tcaf\xe9\t1\n")
    with pytest.raises(UserError, match="is not UTF-8"):
        glue_files.read([path], "sst2", "train", genuine=False)


def test_damaged_parquet_and_hidden_labels_are_named(tmp_path):
    folder = as_parquet(glue_files.write_synthetic(tmp_path / "tsv", "qqp"), tmp_path, "qqp")
    path, other = glue_files.files(folder, "qqp")["train"]
    frame = pd.read_parquet(path)
    frame.assign(label=-1).to_parquet(path)
    with pytest.raises(UserError, match="labels other than 0 and 1"):
        glue_files.read([path, other], "qqp", "train", genuine=False)
    frame.drop(columns="question2").to_parquet(path)
    with pytest.raises(UserError, match="cannot be read as QQP"):
        glue_files.read([path, other], "qqp", "train", genuine=False)
    path.write_bytes(other.read_bytes()[:-20])
    with pytest.raises(UserError, match="cannot be read as QQP"):
        glue_files.read([path, other], "qqp", "train", genuine=False)


def test_missing_files_say_where_to_put_them(tmp_path):
    cause = r"QNLI/train.tsv is missing; run .* task=glue/qnli`, or unpack https://.*/QNLIv2.zip in .*, or put train-\*"
    with pytest.raises(UserError, match=cause):
        glue_files.files(tmp_path, "qnli")
    assert not glue_files.present(tmp_path, "qnli")
    assert glue_files.present(glue_files.write_synthetic(tmp_path, "qnli"), "qnli")


def test_only_the_wanted_members_of_an_archive_are_taken(tmp_path):
    folder = glue_files.write_synthetic(tmp_path / "made", "sst2")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in sorted((folder / "SST-2").iterdir()):
            archive.write(path, f"SST-2/{path.name}")
        archive.writestr("../../evil", "x")
        archive.writestr("SST-2/test.tsv", "x")
    target = tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    take(tmp_path / "a.zip", glue_files.members(target, TABLES["sst2"]))
    assert sorted(path.name for path in target.rglob("*")) == ["SST-2", "dev.tsv", "train.tsv"]
    assert not list(tmp_path.rglob("evil"))
    (target / "SST-2" / "dev.tsv").write_text("whole")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("SST-2/train.tsv", "x")
    with pytest.raises(KeyError):
        take(tmp_path / "b.zip", glue_files.members(target, TABLES["sst2"]))
    assert (target / "SST-2" / "dev.tsv").read_text() == "whole"


def test_an_archive_that_cannot_be_fetched_says_where_to_put_it(tmp_path, monkeypatch):
    import pooch

    def unreachable(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(pooch, "retrieve", unreachable)
    with pytest.raises(UserError, match=r"QQP could not be fetched from https://.*QQP-clean.zip \(no route\)"):
        glue_files.fetch(tmp_path, "qqp")
