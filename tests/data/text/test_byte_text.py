"""Film reviews byte by byte: order, labels, truncation, protocols, and errors of the source."""

import shutil
import tarfile

import numpy as np
import pytest

from subquad.data.text.byte_text import ByteText
from subquad.utils.errors import UserError

BATCHING = {"batch_size": 4, "seed": 0}


def prepared(root, **settings):
    data = ByteText(root=str(root), synthetic=True, **settings, **BATCHING)
    data.prepare_data()
    return data


def text(row):
    return bytes((np.asarray(row) - 1).astype(np.uint8)).decode()


def test_bytes_are_tokens_above_zero_and_labels_follow_the_folder(tmp_path):
    data = prepared(tmp_path)
    rows = data.splits["train"]
    assert len(rows) == 48
    for i in range(len(rows)):
        words = set(text(rows[i]).split()) & {"dull", "awful", "naïve", "great", "moving", "élan"}
        assert words <= ({"great", "moving", "élan"} if rows.targets[i] else {"dull", "awful", "naïve"})
    assert data.spec.vocab == 257
    assert rows.values.min() > 0
    assert [text(rows[i]).split(":")[0] for i in (0, 1, 24)] == ["train 0", "train 1", "train 0"]


def test_reviews_are_cut_at_the_maximum(tmp_path):
    whole, cut = prepared(tmp_path).splits["test"], prepared(tmp_path, max_len=20).splits["test"]
    assert cut.lengths.max() == 20 < whole.lengths.max()
    assert text(cut[5]) == text(whole[5])[:20]


def test_the_paper_validates_on_test_and_clean_does_not(tmp_path):
    paper, clean = prepared(tmp_path), prepared(tmp_path, protocol="clean", val_fraction=0.25)
    assert np.array_equal(paper.splits["val"].values, paper.splits["test"].values)
    assert {name: len(rows) for name, rows in clean.splits.items()} == {"train": 36, "val": 12, "test": 48}
    parts = [{text(rows[i]) for i in range(len(rows))} for rows in clean.splits.values()]
    assert not parts[0] & parts[1]
    assert not parts[1] & parts[2]
    other = prepared(tmp_path, protocol="clean", val_fraction=0.25, split_seed=1)
    assert not np.array_equal(other.splits["val"].targets, clean.splits["val"].targets)


def test_fewer_cases_keep_both_labels(tmp_path):
    data = prepared(tmp_path, cases=20)
    assert {name: len(rows) for name, rows in data.splits.items()} == {"train": 20, "val": 20, "test": 20}
    assert set(data.splits["train"].targets) == {0, 1}


def archive_of(folder, path):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, "aclImdb")
    return path


def test_the_archive_reads_like_its_folder(tmp_path):
    folder = ByteText.write_synthetic(tmp_path)
    packed = archive_of(folder, tmp_path / "a.tar.gz")
    data = ByteText(root=str(tmp_path / "data"), source=str(packed), **BATCHING)
    data.synthetic = True  # another source with as many rows as the synthetic data
    reviews = dict(sorted(data._reviews()))
    assert len(reviews) == 96
    assert reviews == dict(sorted(_reviews_of(folder, tmp_path)))
    assert not (tmp_path / "data").exists()


def _reviews_of(folder, tmp_path):
    return ByteText(root=str(tmp_path / "data"), source=str(folder), **BATCHING)._reviews()


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda folder: (folder / "train/pos/3_1.txt").write_bytes(b"caf\xe9"), "not UTF-8"),
        (lambda folder: (folder / "train/pos/3_1.txt").write_bytes(b""), "is empty"),
        (lambda folder: None, "24 negative and 24 positive reviews in train where 12500"),
    ],
)
def test_what_is_wrong_with_a_source_is_named(tmp_path, change, cause):
    folder = ByteText.write_synthetic(tmp_path)
    [path] = (folder / "train/pos").glob("3_*.txt")
    path.rename(path.with_name("3_1.txt"))
    change(folder)
    with pytest.raises(UserError, match=cause):
        ByteText(root=str(tmp_path / "data"), source=str(folder), **BATCHING).prepare_data()
    assert not list((tmp_path / "data").rglob("meta.json"))


def test_a_truncated_archive_is_named(tmp_path):
    packed = archive_of(ByteText.write_synthetic(tmp_path), tmp_path / "a.tar.gz")
    packed.write_bytes(packed.read_bytes()[:3000])
    with pytest.raises(UserError, match=r"cannot be read \(.*\); data.source names aclImdb_v1\.tar\.gz"):
        ByteText(root=str(tmp_path / "data"), source=str(packed), **BATCHING).prepare_data()


def test_a_missing_source_says_what_to_put_where(tmp_path):
    with pytest.raises(
        UserError, match=r"aclImdb_v1\.tar\.gz is missing; run `python scripts/prepare.py task=lra/text`"
    ):
        ByteText(root=str(tmp_path), **BATCHING).prepare_data()


def test_a_change_inside_the_folder_is_another_source(tmp_path):
    data = prepared(tmp_path)
    before = data.cache_folder
    next((data.source / "train" / "pos").iterdir()).write_text("another film, longer than all others before it")
    assert data.cache_folder != before


def test_a_renamed_folder_behind_a_link_is_read_without_its_hidden_copies(tmp_path):
    folder = ByteText.write_synthetic(tmp_path)
    expected = dict(_reviews_of(folder, tmp_path))
    for place in (folder / "train", folder / "train" / "pos"):
        shutil.copytree(
            folder / "train" / "pos", place / ".ipynb_checkpoints", ignore=lambda *_: [".ipynb_checkpoints"]
        )
    (folder / "train" / "neg" / "._900_1.txt").write_text("a copy")
    folder.rename(tmp_path / "reviews")
    link = tmp_path / "link"
    link.mkdir()
    for split in ("train", "test"):
        (link / split).symlink_to(tmp_path / "reviews" / split)
    (link / "test" / "again").symlink_to(link)  # a circle
    assert dict(_reviews_of(link, tmp_path)) == expected
