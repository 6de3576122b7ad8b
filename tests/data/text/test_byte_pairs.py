"""Pairs of texts: tokens, labels, truncation, batches of both sides, training, and errors of files."""

import ast
import itertools

import numpy as np
import pytest
import torch
from runs import TINY, composed, prepared, trained

from subquad.data.text import byte_pairs
from subquad.data.text.byte_pairs import BytePairs
from subquad.specs import DataSpec, PairBatch
from subquad.utils.errors import UserError

BATCHING = {"batch_size": 8, "seed": 0}
SIZES = {"train": 48, "val": 16, "test": 16}
SMOKE = ("task=lra/retrieval", "data=synthetic", "scale=smoke")
FILES = {split: f"new_aan_pairs.{name}.tsv" for split, name in zip(SIZES, ("train", "eval", "test"), strict=True)}


def make(root, **settings):
    data = BytePairs(root=str(root), **{"synthetic": True} | BATCHING | settings)
    data.prepare_data()
    return data


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("pairs")


def text(row):
    return np.asarray(row).tobytes()


def raw(root, split):
    """The label and the two literals of each row, as in the file."""
    lines = (root / "synthetic" / "aan" / FILES[split]).read_bytes().splitlines()
    return [(row[0], row[3], row[4]) for row in (line.split(b"\t") for line in lines)]


def same(one, other):
    return all(
        (a is None and b is None) or torch.equal(a, b)
        for x, y in zip(one, other, strict=True)
        for a, b in zip((*x.network_inputs, x.target), (*y.network_inputs, y.target), strict=True)
    )


# what the rows are


def test_spec_is_that_of_the_benchmark():
    assert BytePairs(root="unused", **BATCHING).spec == DataSpec(max_len=4000, vocab=257, classes=2)
    assert byte_pairs.ROWS == {"train": 147_086, "val": 18_090, "test": 17_437}


@pytest.mark.parametrize("split", SIZES)
def test_kept_literals_are_the_bytes_of_the_file(root, split):
    rows = make(root).splits[split]
    assert len(rows) == SIZES[split]
    for i, (label, first, second) in enumerate(raw(root, split)):
        assert (text(rows.first[i]), text(rows.second[i])) == (first, second)
        assert rows.targets[i] == float(label)
        assert rows.lengths[i] == max(len(first), len(second))


@pytest.mark.parametrize("split", SIZES)
def test_decoded_literals_are_the_texts_they_stand_for(root, split):
    rows, file = make(root, literals="decoded").splits[split], raw(root, split)
    assert {b"b'", b'b"'} == {literal[:2] for row in file for literal in row[1:]}
    for i, (_, first, second) in enumerate(file):
        assert text(rows.first[i]) == ast.literal_eval(first.decode())
        assert text(rows.second[i]) == ast.literal_eval(second.decode())
    everything = b"".join(text(rows.first[i]) for i in range(len(rows))).decode()
    assert {"\n", "\t", "Ü"} <= set(everything)


def test_texts_of_one_subject_belong_together(root):
    rows = make(root, literals="decoded").splits["train"]
    subjects = ({"parser", "tree", "grammar's"}, {"naïve", "Bayes", "corpus"})
    for i in range(len(rows)):
        words = [set(text(side[i]).decode().split()) for side in (rows.first, rows.second)]
        subjects_of = [{place for place in (0, 1) if w & subjects[place]} for w in words]
        assert max(map(len, subjects_of)) == 1
        assert not all(subjects_of) or (subjects_of[0] == subjects_of[1]) == bool(rows.targets[i])
    assert 10 < rows.targets.sum() < 38


@pytest.mark.parametrize("literals", ["kept", "decoded"])
def test_texts_are_cut_at_the_maximum(root, literals):
    whole, cut = make(root, literals=literals).splits["val"], make(root, literals=literals, max_len=50).splits["val"]
    assert cut.lengths.max() == 50 < whole.lengths.max()
    assert all(text(cut.second[i]) == text(whole.second[i])[:50] for i in range(len(cut)))


def test_fewer_cases_are_a_seeded_part_of_each_split(root):
    whole, part, again = make(root), make(root, cases=10), make(root, cases=10)
    assert [len(rows) for rows in part.splits.values()] == [10, 10, 10]
    assert part.fingerprint == whole.fingerprint
    for split, rows in part.splits.items():
        texts = [text(rows.first[i]) for i in range(10)]
        everything = [text(whole.splits[split].first[i]) for i in range(SIZES[split])]
        assert texts == [text(again.splits[split].first[i]) for i in range(10)]
        places = [everything.index(text) for text in texts]
        assert places == sorted(places) != list(range(10))
        assert rows.targets.tolist() == whole.splits[split].targets[places].tolist()
    assert len(make(root, cases=1000).splits["test"]) == 16


# batches


@pytest.mark.parametrize("literals", ["kept", "decoded"])
def test_batches_are_what_the_spec_says(root, literals):
    data = make(root, literals=literals, max_len=150)
    count = 0
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        for batch in loader:
            assert isinstance(batch, PairBatch)
            assert batch.first.shape == batch.second.shape
            assert batch.first.shape[1] <= data.spec.max_len
            assert set(batch.target.tolist()) <= {0, 1}
            assert batch.target.dtype == torch.int64
            for tokens, valid in ((batch.first, batch.first_valid), (batch.second, batch.second_valid)):
                assert tokens.dtype == torch.int64
                assert tokens.max() < data.spec.vocab
                real = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
                assert real.any(1).all()
                assert torch.equal(tokens > 0, real)
                count += 1
    assert count == 2 * (6 + 2 + 2)


def test_a_batch_holds_its_rows(root):
    data = make(root)
    batch = data.batched("train").__getitems__([3, 1])
    rows = data.splits["train"]
    for place, i in enumerate((3, 1)):
        for tokens, valid, side in (
            (batch.first, batch.first_valid, rows.first),
            (batch.second, batch.second_valid, rows.second),
        ):
            real = tokens[place] if valid is None else tokens[place][valid[place]]
            assert bytes((real - 1).tolist()) == text(side[i])
        assert batch.target[place] == rows.targets[i]


def test_batches_are_bucketed_by_the_longer_text(root):
    data = make(root)
    widths = [batch.first.shape[1] for batch in data.val_dataloader()]
    assert widths == sorted(widths)
    lengths = np.sort(data.splits["val"].lengths)
    assert widths == [lengths[7], lengths[15]]


def test_an_empty_text_is_a_row_of_padding(root):
    data = make(root, literals="decoded")
    rows = data.splits["val"]
    hollow = byte_pairs.ragged.lay_out([rows.first.values[:0], rows.first[1]], rows.targets[:2])
    batch = byte_pairs.PairDataset(byte_pairs.Pairs(hollow, hollow)).__getitems__([0])
    assert batch.first.shape == (1, 1)
    assert not batch.first_valid.any()


def test_splits_share_no_row_and_validation_and_test_see_each_row_once(root):
    data = make(root)
    rows = [(split, text(s.first[i]), text(s.second[i])) for split, s in data.splits.items() for i in range(len(s))]
    assert len({row[1:] for row in rows}) == len(rows) == 80
    for name in ("val", "test"):
        batches = list(getattr(data, f"{name}_dataloader")())
        texts = [bytes((row[row > 0] - 1).tolist()) for batch in batches for row in batch.first]
        assert sorted(texts) == sorted(row[1] for row in rows if row[0] == name)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_no_batch(root, workers):
    alone, shared = (list(make(root, num_workers=n).train_dataloader()) for n in (0, workers))
    assert same(alone, shared)


def test_a_resumed_run_sees_what_an_undisturbed_one_sees(root):
    def epochs(loader, numbers):
        for number in numbers:
            loader.batch_sampler.set_epoch(number)
            yield from loader

    whole, resumed = (make(root, steps_per_epoch=4).train_dataloader() for _ in range(2))
    assert same(list(epochs(whole, (0, 1, 2)))[4:], list(epochs(resumed, (1, 2))))


def test_order_is_that_of_the_seed(root):
    def order(seed, epoch):
        loader = make(root, seed=seed).train_dataloader()
        loader.batch_sampler.set_epoch(epoch)
        return list(loader.batch_sampler)

    assert order(0, 1) == order(0, 1)
    assert len({str(order(*which)) for which in itertools.product((0, 1), (0, 1))}) == 4


def test_baseline_is_the_majority_class(root):
    data = make(root)
    [(name, score)] = data.baselines().items()
    commonest = np.bincount(data.splits["train"].targets).argmax()
    assert name == "majority class"
    assert score == np.mean(data.splits["test"].targets == commonest)


# training


@pytest.mark.parametrize("choice", ["attention=dba", "attention=softmax", "backbone=blrp", "backbone=tlb"])
def test_a_few_steps_train(data, outputs, choice):
    tiny = [word for word in TINY if "attention" in choice or "layers" not in word]
    record = trained(composed(data, outputs, *SMOKE, choice, *tiny))
    assert record.steps == 4
    assert record.metrics.keys() == {"train/loss", "val/loss", "val/accuracy", "test/accuracy"}
    assert record.baselines.keys() == {"majority class"}


def test_the_fingerprint_tells_apart_how_the_towers_combine(data, outputs):
    overrides = (*SMOKE, "attention=softmax", *TINY)
    runs = {
        composed(data, outputs, *overrides, f"task.module.backbone.combine={c}").paths.run for c in ("nli", "concat")
    }
    assert len(runs) == 2


# what is wrong with the files


def rewrite(folder, split, change, line=3):
    path = folder / FILES[split]
    lines = path.read_bytes().split(b"\n")
    lines[line - 1] = change(lines[line - 1])
    path.write_bytes(b"\n".join(lines))


@pytest.mark.parametrize(
    ("literals", "change", "cause"),
    [
        ("kept", lambda row: row[: len(row) - 5], "no whole Python bytes literal"),
        ("kept", lambda row: row[:30], "4 columns"),
        ("kept", lambda row: b"", "1 columns"),
        ("kept", lambda row: row + b"\tmore", "6 columns"),
        ("kept", lambda row: b"2.0" + row[3:], r"labelled b'2.0', not 0 or 1"),
        ("kept", lambda row: b"nan" + row[3:], "labelled b'nan'"),
        ("kept", lambda row: b"label" + row[3:], "labelled b'label'"),
        ("kept", lambda row: row.replace(b"\tb", b"\t"), "no whole Python bytes literal"),
        ("kept", lambda row: row[:-3] + "é".encode() + row[-1:], "literal in ASCII"),
        ("decoded", lambda row: row[:-1] + b"\\x4" + row[-1:], "no Python bytes literal"),
        ("decoded", lambda row: row[:-1] + row[-1:] + b", b" + row[-1:] + row[-1:], "no Python bytes literal"),
    ],
)
@pytest.mark.parametrize("split", ["train", "val"])
def test_damaged_rows_are_named_with_file_and_line(tmp_path, monkeypatch, literals, change, cause, split):
    monkeypatch.setattr(byte_pairs, "ROWS", SIZES)
    folder = BytePairs.write_synthetic(tmp_path)
    rewrite(folder, split, change)
    with pytest.raises(UserError, match=rf"{FILES[split]}, line 3 .*{cause}"):
        read(tmp_path, literals=literals)
    assert not list((tmp_path / "data").rglob("meta.json"))


def read(folder, **settings):
    return make(folder / "data", folder=str(folder), synthetic=False, **settings)


def test_genuine_row_counts_are_checked(tmp_path, monkeypatch):
    folder = BytePairs.write_synthetic(tmp_path)
    with pytest.raises(UserError, match=r"train\.tsv has 48 rows where 147086 are expected"):
        read(folder)
    monkeypatch.setattr(byte_pairs, "ROWS", {**SIZES, "test": 15})
    with pytest.raises(UserError, match=r"test\.tsv has 16 rows where 15 are expected"):
        read(folder)
    monkeypatch.setattr(byte_pairs, "ROWS", SIZES)
    rewrite(folder, "test", lambda row: row + b"\r")
    assert len(read(folder).splits["test"]) == 16


@pytest.mark.parametrize("missing", FILES.values())
def test_missing_files_say_what_to_put_where(tmp_path, missing):
    folder = BytePairs.write_synthetic(tmp_path)
    (folder / missing).unlink()
    with pytest.raises(UserError, match=rf"{missing} is missing; unpack the folder tsv_data of https.*data\.folder"):
        read(folder)


def test_what_is_not_prepared_and_what_changed_is_noticed(tmp_path, monkeypatch):
    folder = BytePairs.write_synthetic(tmp_path)
    monkeypatch.setattr(byte_pairs, "ROWS", SIZES)
    data = BytePairs(root=str(tmp_path), folder=str(folder), **BATCHING)
    with pytest.raises(UserError, match=r"prepare\.py task=lra/retrieval"):
        data.load()
    before = data.cache_folder
    assert len({data.cache_folder, *(
        BytePairs(root=str(tmp_path), folder=str(folder), **BATCHING, **other).cache_folder
        for other in ({"literals": "decoded"}, {"max_len": 100}, {"cases": 3})
    )}) == 3  # fmt: skip
    rewrite(folder, "val", lambda row: row + b" ")
    assert data.cache_folder != before


def test_texts_longer_than_the_cache_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"data\.max_len is 10001; Retrieval caches the first 10000 bytes"):
        BytePairs(root=str(tmp_path), max_len=10_001, **BATCHING)


def test_the_command_line_reaches_every_setting(data, outputs):
    made = prepared(composed(data, outputs, *SMOKE, "data.literals=decoded", "data.max_len=60"))
    assert (made.literals, made.max_len, made.cases, made.batch_size) == ("decoded", 60, 24, 8)
    assert made.splits["train"].lengths.max() == 60
