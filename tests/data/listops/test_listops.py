import itertools
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from subquad.data.listops import listops, listops_release
from subquad.data.listops.grammar import MAX, decode, encode, evaluate
from subquad.data.listops.listops import ListOps, describe, multiplied, shortcuts
from subquad.data.ragged import Ragged
from subquad.specs import DataSpec
from subquad.utils.errors import UserError

SPLITS = ("train", "val", "test")
SMALL = {"sizes": (300, 40, 60), "min_length": 20, "max_length": 100}


def make(root, **changes):
    return ListOps(**{"root": str(root), "batch_size": 8, "seed": 0, "workers": 1, **SMALL, **changes})


def released(root, folder, **changes):
    return make(root, **{"source": "release", "release_dir": str(folder), "sizes": (64, 16, 16), **changes})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    data = make(tmp_path_factory.mktemp("data"))
    data.prepare_data()
    return data


@pytest.fixture
def synthetic(tmp_path):
    return ListOps.write_synthetic(tmp_path / "listops-1000")


def toy(expressions):
    rows = [encode(text) for text in expressions]
    offsets = np.cumsum([0, *map(len, rows)])
    return Ragged(np.concatenate(rows), offsets, np.array([evaluate(row) for row in rows]))


def test_spec_is_that_of_the_benchmark():
    data = ListOps(root="unused", batch_size=32, seed=0)
    assert data.spec == DataSpec(max_len=1999, vocab=16, classes=10)
    assert data.sizes == {"train": 96_000, "val": 2_000, "test": 2_000}
    assert (data.min_length, data.max_length, data.max_depth) == (500, 2000, 10)


def test_splits_have_their_sizes_and_share_nothing(prepared):
    splits = prepared.splits
    assert [len(splits[split]) for split in SPLITS] == [300, 40, 60]
    rows = [splits[split][i] for split in SPLITS for i in range(len(splits[split]))]
    assert len({row.tobytes() for row in rows}) == 400
    assert [evaluate(row) for row in rows] == [t for split in SPLITS for t in splits[split].targets]
    assert all(20 < len(row) < 100 for row in rows)
    assert {splits[split].values.dtype for split in SPLITS} == {np.dtype(np.uint8)}
    assert {splits[split].targets.dtype for split in SPLITS} == {np.dtype(np.int64)}


def test_batches_hold_padded_ids_and_class_indices(prepared):
    batch = next(iter(prepared.test_dataloader()))
    assert batch.inputs.dtype == batch.target.dtype == torch.int64
    shortest = batch.inputs[0][batch.valid[0]] if batch.valid is not None else batch.inputs[0]
    assert evaluate(shortest.tolist()) == batch.target[0]


def test_data_depend_on_the_data_seed_and_not_on_the_training_seed_or_workers(prepared, tmp_path):
    same, other = make(tmp_path, seed=7, workers=2), make(tmp_path, data_seed=1)
    same.prepare_data()
    other.prepare_data()
    assert same.fingerprint == prepared.fingerprint
    assert other.fingerprint != prepared.fingerprint


def test_more_test_rows_leave_all_other_rows_as_they_are(prepared, tmp_path):
    few, many = (make(tmp_path, sizes=(300, 40, rows)) for rows in (2000, 2300))
    for data in (few, many):
        data.prepare_data()
    for split, rows in {"train": 300, "val": 40, "test": 2000}.items():
        first = many.splits[split].take(np.arange(rows))
        assert first.values.tobytes() == few.splits[split].values.tobytes()
        assert first.targets.tolist() == few.splits[split].targets.tolist()
    every = [many.splits[split][i].tobytes() for split in SPLITS for i in range(len(many.splits[split]))]
    assert len(set(every)) == 2640
    assert prepared.fingerprint == "c001dfd26176bbe4"  # those of earlier versions


def test_a_release_has_no_more_rows_than_its_files(tmp_path):
    data = released(tmp_path, tmp_path, sizes=(96_000, 2_000, 20_000))
    assert data.sizes == {"train": 96_000, "val": 2_000, "test": 2_000}


def test_folder_tells_apart_every_setting_that_changes_the_data(tmp_path):
    changes = [{}, {"sizes": (1, 2, 3)}, {"min_length": 21}, {"max_length": 99}, {"max_depth": 9}, {"data_seed": 1}]
    assert len({make(tmp_path, **change).cache_folder for change in changes}) == len(changes)
    assert make(tmp_path, workers=3, seed=5).cache_folder == make(tmp_path).cache_folder


def test_baselines_are_learned_on_train_and_scored_on_test():
    train = toy(["[MIN 1 2 X", "[MIN 1 3 X", "[MIN 4 4 X", "[MAX 7 8 X", "[MAX 8 1 X", "[MAX 8 2 X"])
    test = toy(["[MIN 1 5 X", "[MIN 8 8 X", "[MAX 3 8 X", "[MAX 1 1 X", "[SM 0 0 X"])
    assert shortcuts(train, test) == {"majority class": 2 / 5, "root operator only": 3 / 5}


def test_baselines_of_prepared_data(prepared):
    scores = prepared.baselines()
    assert scores == shortcuts(prepared.splits["train"], prepared.splits["test"])
    assert {k: prepared.facts["test"][k] for k in scores} == scores


def test_statistics_of_a_set_counted_by_hand():
    rows = toy(["[MAX 3 5 X", "[SM 1 [MIN 2 3 4 X 6 X", "[MED 5 6 X"])
    facts = describe(rows, rows)
    assert facts["labels"] == pytest.approx([0, 0, 0, 0, 0, 2 / 3, 0, 0, 0, 1 / 3])
    assert facts["length mean"] == pytest.approx(17 / 3)
    assert facts["length percentiles"]["100"] == 9
    assert facts["length percentiles"]["50"] == 4
    assert facts["operators"] == pytest.approx(4 / 3)
    assert facts["arguments"] == pytest.approx((2 + 3 + 3 + 2) / 4)
    assert facts["majority class"] == pytest.approx(2 / 3)
    assert facts["root operator only"] == 1


@pytest.mark.parametrize("copies", [1, 2, 3, 4])
def test_multiplied_expressions_keep_their_values_and_are_that_much_longer(prepared, copies):
    rows = prepared.splits["test"]
    longer = multiplied(rows, copies)
    assert longer.lengths.tolist() == [copies * n + 2 * (copies > 1) for n in rows.lengths]
    assert longer.targets.tolist() == rows.targets.tolist()
    assert longer.values.dtype == np.uint8
    for i in range(len(rows)):
        once = decode(rows[i])
        assert decode(longer[i]) == (once if copies == 1 else f"[MAX {' '.join([once] * copies)} X")
        assert evaluate(longer[i]) == rows.targets[i]


def test_multiplying_changes_the_test_split_alone(prepared):
    longer = make(prepared.root, multiply=3)
    assert longer.fingerprint == prepared.fingerprint
    for split in ("train", "val"):
        assert longer.splits[split].values.tolist() == prepared.splits[split].values.tolist()
    assert longer.splits["test"].lengths.tolist() == (3 * prepared.splits["test"].lengths + 2).tolist()
    assert longer.spec.max_len == 3 * 99 + 2 == 3 * prepared.spec.max_len + 2
    assert max(batch.inputs.shape[1] for batch in longer.test_dataloader()) <= longer.spec.max_len
    assert ListOps(root="unused", batch_size=1, seed=0, multiply=4).spec.max_len == 7998
    train = longer.splits["train"]
    under_max = train.targets[train.values[train.offsets[:-1]] == MAX]
    commonest = np.bincount(under_max).argmax()
    assert longer.baselines()["root operator only"] == np.mean(longer.splits["test"].targets == commonest)


def test_facts_name_source_and_settings(prepared):
    facts = prepared.facts
    assert facts["source"] == "generated"
    assert (facts["min_length"], facts["max_length"], facts["max_depth"], facts["data_seed"]) == (20, 100, 10, 0)
    assert 0 < facts["acceptance"] < 1
    assert set(SPLITS) < facts.keys()


def test_prepared_data_are_not_made_again(prepared, monkeypatch):
    monkeypatch.setattr(listops, "generate", None)
    make(prepared.root).prepare_data()


def test_second_process_waits_for_the_first(tmp_path, monkeypatch):
    calls = []
    together = threading.Barrier(2)

    def slow(*args, **kwargs):
        calls.append(args)
        time.sleep(0.2)
        return generate(*args, **kwargs)

    def prepare():
        together.wait(5)
        data = make(tmp_path)
        data.prepare_data()
        return data.fingerprint

    generate = listops.generate
    monkeypatch.setattr(listops, "generate", slow)
    with ThreadPoolExecutor(2) as pool:
        first, second = [pool.submit(prepare) for _ in range(2)]
        assert first.result() == second.result()
    assert len(calls) == 1


@pytest.mark.parametrize("file", ["train.values.npy", "val.offsets.npy", "test.targets.npy"])
def test_damaged_cache_is_reported(prepared, tmp_path, file):
    data = make(tmp_path)
    shutil.copytree(prepared.cache_folder, data.cache_folder)
    damaged = data.cache_folder / file
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        make(tmp_path).load()


def test_interrupted_writing_leaves_nothing(tmp_path, monkeypatch):
    saved, save = itertools.count(), np.save

    def interrupted(*args, **kwargs):
        if next(saved) == 4:
            raise KeyboardInterrupt
        save(*args, **kwargs)

    data = make(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            data.prepare_data()
    assert [path for path in data.cache_folder.parent.iterdir() if path.suffix != ".lock"] == []
    data.prepare_data()
    assert len(data.splits["train"]) == 300


def test_unprepared_data_name_the_command(tmp_path):
    with pytest.raises(UserError, match=r"prepare\.py task=lra/listops"):
        make(tmp_path).load()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"source": "release"}, "release_dir"),
        ({"sizes": (10, 10)}, "sizes"),
        ({"min_length": 99}, "min_length"),
    ],
)
def test_impossible_settings_are_refused(tmp_path, changes, complaint):
    with pytest.raises(UserError, match=complaint):
        make(tmp_path, **changes)


def test_unknown_argument_is_named(tmp_path):
    with pytest.raises(TypeError, match="btach_size"):
        make(tmp_path, btach_size=3)


def test_release_gives_the_ids_and_values_of_its_files(tmp_path, synthetic):
    data = released(tmp_path, synthetic, max_length=200)
    data.prepare_data()
    for split in SPLITS:
        lines = (synthetic / f"basic_{split}.tsv").read_text().splitlines()
        assert lines[0] == "Source\tTarget"
        rows = data.splits[split]
        assert len(rows) == len(lines) - 1
        for i, line in enumerate(lines[1:]):
            source, target = line.split("\t")
            symbols = [s for s in source.replace("]", "X").split() if s not in "()"]
            assert encode(" ".join(symbols)).tolist() == rows[i].tolist()
            assert rows.targets[i] == int(target)
        assert rows.values.dtype == np.uint8
        assert rows.targets.dtype == np.int64
    assert data.facts["source"] == "release"
    assert json.dumps(data.baselines())


def test_other_sizes_read_the_first_rows_and_line_ends_do_not_matter(tmp_path, synthetic):
    whole = released(tmp_path, synthetic, max_length=200)
    whole.prepare_data()
    first = whole.splits["test"].take(np.arange(3))
    for split in SPLITS:
        path = synthetic / f"basic_{split}.tsv"
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    part = released(tmp_path, synthetic, max_length=200, sizes=(5, 4, 3))
    part.prepare_data()
    assert [len(part.splits[split]) for split in SPLITS] == [5, 4, 3]
    assert part.splits["test"].values.tolist() == first.values.tolist()


def test_changed_release_is_read_again(tmp_path, synthetic):
    before = released(tmp_path, synthetic).cache_folder
    with (synthetic / "basic_val.tsv").open("a") as file:
        file.write("\n")
    assert released(tmp_path, synthetic).cache_folder != before


def rewrite(synthetic, split, number, change):
    path = synthetic / f"basic_{split}.tsv"
    lines = path.read_text().splitlines()
    lines[number - 1] = change(lines[number - 1])
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("split", "line", "change", "complaint"),
    [
        ("train", 1, lambda row: "source,target", "header"),
        ("train", 1, lambda row: "( ( ( [MAX 3 ) 5 ) ] )\t5", "header"),
        ("train", 40, lambda row: row[:60], "cut off"),
        ("val", 3, lambda row: row.split("\t")[0], "cut off"),
        ("val", 3, lambda row: row.split("\t")[0] + "\t", "cut off"),
        ("val", 3, lambda row: row.split("\t")[0] + "\t10", "cut off"),
        ("val", 3, lambda row: row + "\t1", "cut off"),
        ("val", 5, lambda row: "", "cut off"),
        ("test", 7, lambda row: row.replace(" ] ", " [FIRST ", 1), r"Unknown ListOps symbol '\[FIRST' at position"),
        ("test", 7, lambda row: row[row.index(")") :], "ListOps expression|bracket"),
        ("test", 7, lambda row: row.replace(" )", "", 1), "Parenthesis"),
        ("train", 65, lambda row: f"{row[:-1]}{(int(row[-1]) + 1) % 10}", "is labelled"),
        ("test", 2, lambda row: "( " * 102 + "[MAX" + " 3 )" * 100 + " ] ) )\t3", "Parenthesis"),
        ("test", 2, lambda row: "( " * 199 + "[MAX" + " 3 )" * 198 + " ] )\t3", "200 tokens; raise data.max_length"),
    ],
)
def test_damaged_rows_are_reported_with_file_and_line(tmp_path, synthetic, split, line, change, complaint):
    rewrite(synthetic, split, line, change)
    with pytest.raises(UserError, match=rf"basic_{split}\.tsv, line {line}: .*({complaint})"):
        released(tmp_path, synthetic, max_length=200).prepare_data()


def test_longest_allowed_row_is_read(tmp_path, synthetic):
    rewrite(synthetic, "test", 2, lambda row: "( " * 198 + "[MAX" + " 3 )" * 197 + " ] )\t3")
    data = released(tmp_path, synthetic, max_length=200)
    data.prepare_data()
    assert data.splits["test"].lengths[0] == data.spec.max_len == 199


def test_missing_release_names_the_file_and_where_to_get_it(tmp_path, synthetic):
    (synthetic / "basic_val.tsv").unlink()
    for folder in (synthetic, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"basic_\w+\.tsv is missing.*listops-1000.*lra_release.*source=generated"):
            released(tmp_path, folder).prepare_data()


def test_genuine_row_counts_are_checked(tmp_path, synthetic, monkeypatch):
    with pytest.raises(UserError, match=r"basic_train\.tsv has only 64 rows where 96000 are wanted"):
        released(tmp_path, synthetic, max_length=200, sizes=(96_000, 2_000, 2_000)).prepare_data()
    monkeypatch.setitem(listops_release.SIZES, "val", 10)
    with pytest.raises(UserError, match=r"basic_val\.tsv has more rows where 10 are wanted"):
        released(tmp_path, synthetic, max_length=200, sizes=(64, 10, 16)).prepare_data()
