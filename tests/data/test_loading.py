"""From rows on disk to batches: the order of training, padding, worker processes, and the cache."""

import errno
import os
import pickle
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from subquad.data import ragged
from subquad.data.batches import EvalBatches, TrainBatches
from subquad.data.ragged import Ragged
from subquad.data.split_data import SequenceData, SequenceDataset
from subquad.specs import DataSpec, SequenceBatch
from subquad.utils.errors import UserError

LENGTHS = np.random.default_rng(0).integers(1, 200, 103)


def rows(lengths=(3, 1, 4, 2, 5), channels=None, dtype=np.uint8):
    """Sequence i is i + 1, i + 1, ...; its target is i."""
    values = np.repeat(np.arange(1, len(lengths) + 1), lengths).astype(dtype)
    if channels:
        values = np.repeat(values[:, None], channels, 1)
    return Ragged(values, np.cumsum([0, *lengths]), np.arange(len(lengths)))


def epochs(batches, numbers):
    batch_list = []
    for number in numbers:
        batches.set_epoch(number)
        batch_list += list(batches)
    return batch_list


def test_each_pass_covers_every_row_once_and_keeps_the_small_last_batch():
    batches = TrainBatches(LENGTHS, 8, seed=0)
    assert len(batches) == 13
    for epoch in range(3):
        batch_list = epochs(batches, [epoch])
        assert sorted(i for batch in batch_list for i in batch) == list(range(103))
        assert sorted(map(len, batch_list)) == [7] + [8] * 12


def test_batches_are_a_pure_function_of_seed_and_epoch():
    one, other = TrainBatches(LENGTHS, 8, seed=0), TrainBatches(LENGTHS, 8, seed=0)
    epochs(one, [4, 0, 2])
    np.random.seed(7)
    assert epochs(one, [1]) == epochs(other, [1])
    assert epochs(one, [1]) != epochs(one, [2])
    assert epochs(one, [1]) != epochs(TrainBatches(LENGTHS, 8, seed=1), [1])


def test_epochs_of_steps_continue_one_stream():
    whole = epochs(TrainBatches(LENGTHS, 8, seed=0), range(5))
    parts = TrainBatches(LENGTHS, 8, seed=0, steps=5)
    assert len(parts) == 5
    assert epochs(parts, range(13)) == whole
    assert epochs(TrainBatches(LENGTHS, 8, seed=0, steps=30), [0, 1]) == whole[:60]


def test_rows_of_a_batch_have_similar_lengths():
    def spread(batches):
        return np.mean([np.ptp(LENGTHS[batch]) for batch in batches])

    assert spread(epochs(TrainBatches(LENGTHS, 8, seed=0), [0])) < 25
    assert spread(epochs(TrainBatches(LENGTHS, 8, seed=0, pool=1), [0])) > 100


def test_batches_of_a_pass_do_not_come_in_order_of_length():
    lengths = [LENGTHS[batch].mean() for batch in epochs(TrainBatches(LENGTHS, 8, seed=0), [0])]
    assert lengths != sorted(lengths)


def test_processes_share_each_batch():
    whole = epochs(TrainBatches(LENGTHS, 8, seed=0), [0, 1])
    shares = [epochs(TrainBatches(LENGTHS, 8, seed=0, rank=rank, world_size=4), [0, 1]) for rank in range(4)]
    for batch, *parts in zip(whole, *shares, strict=True):
        assert sorted(i for part in parts for i in part) == sorted(batch)
        assert sum(map(len, parts)) == len(batch)


def test_a_batch_that_cannot_be_shared_is_refused():
    with pytest.raises(UserError, match="8 cannot be shared by 3"):
        TrainBatches(LENGTHS, 8, seed=0, world_size=3)


def test_evaluation_sees_every_row_once_in_order_of_length():
    batches = list(EvalBatches(LENGTHS, 10))
    assert len(EvalBatches(LENGTHS, 10)) == len(batches) == 11
    order = [i for batch in batches for i in batch]
    assert sorted(order) == list(range(103))
    assert (np.diff(LENGTHS[order]) >= 0).all()
    shares = [i for rank in range(3) for batch in EvalBatches(LENGTHS, 10, rank, 3) for i in batch]
    assert sorted(shares) == list(range(103))


def test_rows_are_padded_on_the_right_and_masked():
    batch = SequenceDataset(rows()).__getitems__([1, 0, 3])
    assert batch.inputs.tolist() == [[2, 0, 0], [1, 1, 1], [4, 4, 0]]
    assert batch.valid.tolist() == [[True, False, False], [True, True, True], [True, True, False]]
    assert batch.target.tolist() == [1, 0, 3]
    assert (batch.inputs.dtype, batch.valid.dtype, batch.target.dtype) == (torch.int64, torch.bool, torch.int64)
    assert len(batch) == 3


def test_a_batch_without_padding_has_no_mask():
    assert SequenceDataset(rows()).__getitems__([2]).valid is None
    assert SequenceDataset(rows(), pad_to=4).__getitems__([2]).valid is None


def test_pad_to_fixes_the_length_of_every_batch():
    batch = SequenceDataset(rows(), pad_to=6).__getitems__([1, 3])
    assert batch.inputs.shape == (2, 6)
    assert batch.valid.sum(1).tolist() == [1, 2]


def test_series_stay_real():
    batch = SequenceDataset(rows(channels=2, dtype=np.float32)).__getitems__([3, 1])
    assert batch.inputs.dtype == torch.float32
    assert batch.inputs.tolist() == [[[4.0, 4.0], [4.0, 4.0]], [[2.0, 2.0], [0.0, 0.0]]]


def test_a_batch_survives_transport():
    batch = SequenceDataset(rows()).__getitems__([0, 1])
    moved, pickled = batch.to("cpu"), pickle.loads(pickle.dumps(batch))
    for other in (moved, pickled):
        assert isinstance(other, SequenceBatch)
        assert torch.equal(other.inputs, batch.inputs)
        assert torch.equal(other.valid, batch.valid)
        assert torch.equal(other.target, batch.target)
    assert batch.to("meta").inputs.device.type == "meta"
    assert SequenceDataset(rows()).__getitems__([2]).to("meta").valid is None


class Memory(SequenceData):
    """Twenty rows of unequal length."""

    def prepare_data(self):
        """Nothing to do."""

    def load(self):
        return dict.fromkeys(("train", "val", "test"), rows(lengths=range(1, 21))), "fixed"

    @property
    def spec(self):
        return DataSpec(max_len=20, vocab=21, classes=20)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_give_the_batches_of_the_epoch_that_was_set(workers):
    loader = Memory(batch_size=4, seed=0, num_workers=workers).train_dataloader()
    for epoch in (0, 3, 1):
        loader.batch_sampler.set_epoch(epoch)
        expected = epochs(TrainBatches(np.arange(1, 21), 4, seed=0), [epoch])
        assert [batch.target.tolist() for batch in loader] == expected


@pytest.mark.parametrize(
    ("device", "processes", "cores", "task", "wanted"),
    [
        ("cpu", 1, 16, None, 0),
        ("cuda", 1, 16, None, 8),
        ("cuda", 1, 3, None, 3),
        ("cuda", 4, 16, None, 4),
        ("cuda", 4, 2, None, 1),
        ("cuda", 4, 6, "6", 6),  # Slurm binds each task to its own cores
        ("cuda", 1, 16, "2", 2),
    ],
)
def test_automatic_workers_are_the_share_of_the_cores_on_a_gpu(monkeypatch, device, processes, cores, task, wanted):
    monkeypatch.setattr("subquad.utils.cores.core_numbers", lambda: set(range(cores)))
    monkeypatch.setattr("subquad.utils.cores._CGROUP_QUOTA", Path("/does/not/exist"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    if task:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", task)
    data = Memory(batch_size=4, seed=0, num_workers="auto")
    assert data.loading_processes == 0
    data.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)), num_devices=processes)
    assert data.loading_processes == wanted
    assert Memory(batch_size=4, seed=0, num_workers=5).loading_processes == 5


@pytest.mark.parametrize(("device", "given", "rows"), [("cpu", None, 4), ("cuda", None, 8), ("cuda", 3, 3)])
def test_a_gpu_evaluates_twice_the_rows_of_a_microbatch(device, given, rows):
    data = Memory(batch_size=16, seed=0, eval_batch_size=given)
    data.trainer = SimpleNamespace(
        strategy=SimpleNamespace(root_device=torch.device(device)), world_size=2, accumulate_grad_batches=2
    )
    assert data.eval_batch_size == rows


def test_loaders_leave_the_generator_of_torch_alone():
    loader = Memory(batch_size=4, seed=0).train_dataloader()
    before = torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_trivial_baselines_count_what_needs_no_model():
    data = Memory(batch_size=4, seed=0)
    assert data.baselines() == {"majority class": 0.05}
    assert data.fingerprint == "fixed"
    assert data.eval_batch_size == 4
    assert [len(batch) for batch in Memory(batch_size=4, seed=0, eval_batch_size=15).val_dataloader()] == [15, 5]


# the cache


@pytest.fixture
def cache(tmp_path):
    ragged.write(tmp_path / "c" / "set", {"train": rows(), "test": rows((2, 2))}, {"about": [1, "x"]})
    return tmp_path / "c" / "set"


def equal(a, b):
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) and getattr(a, name).dtype == getattr(b, name).dtype
        for name in ("values", "offsets", "targets")
    )


def test_what_is_written_is_read(cache):
    stored = ragged.read(cache)
    assert stored.splits.keys() == {"train", "test"}
    assert equal(stored.splits["train"], rows())
    assert stored.facts == {"about": [1, "x"]}
    assert [path.name for path in cache.parent.iterdir()] == ["set"]
    assert ragged.read(cache.parent / "none") is None


def test_the_fingerprint_follows_every_byte(cache, tmp_path):
    ragged.write(tmp_path / "same", {"train": rows(), "test": rows((2, 2))}, {})
    ragged.write(tmp_path / "other", {"train": rows((3, 1, 4, 2, 4)), "test": rows((2, 2))}, {})
    one, same, other = (ragged.read(path).fingerprint for path in (cache, tmp_path / "same", tmp_path / "other"))
    assert one == same != other


def test_take_copies_rows_in_the_given_order():
    taken = rows().take(np.array([3, 0, 3]))
    assert [taken[i].tolist() for i in range(3)] == [[4, 4], [1, 1, 1], [4, 4]]
    assert taken.targets.tolist() == [3, 0, 3]
    assert taken.lengths.tolist() == [2, 3, 2]
    assert len(rows().take(np.array([], np.int64))) == 0


@pytest.mark.parametrize("name", ["train.values.npy", "train.targets.npy", "test.offsets.npy"])
@pytest.mark.parametrize("position", [0, -1])
def test_a_changed_byte_is_noticed(cache, name, position):
    content = bytearray((cache / name).read_bytes())
    content[position] ^= 1
    (cache / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"damaged or of another version \({name}\); delete"):
        ragged.read(cache)


def test_a_missing_file_and_a_broken_description_are_noticed(cache):
    (cache / "test.values.npy").unlink()
    with pytest.raises(UserError, match="damaged"):
        ragged.read(cache)
    (cache / "meta.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        ragged.read(cache)


def test_a_cache_under_the_name_of_other_settings_is_noticed(cache):
    with pytest.raises(UserError, match=r"other is damaged or of another version \(it is that of set\)"):
        ragged.read(cache.rename(cache.with_name("other")))


@pytest.mark.parametrize("meta", ["[]", "null", '"x"', '{"sha256": [], "splits": [], "facts": {}}', "{}"])
def test_a_description_of_another_kind_is_noticed(cache, meta):
    (cache / "meta.json").write_text(meta)
    with pytest.raises(UserError, match="damaged"):
        ragged.read(cache)


@pytest.mark.parametrize(
    ("old", "new"), [('"mask": 3', '"mask": 77'), ('"test",', ""), ('"test.offsets.npy"', '"test.o"')]
)
def test_a_changed_description_is_noticed(tmp_path, old, new):
    ragged.write(tmp_path / "set", {"train": rows(), "test": rows((2, 2))}, {"mask": 3})
    path = tmp_path / "set" / "meta.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match="damaged"):
        ragged.read(tmp_path / "set")


def test_one_process_of_a_machine_compares_the_checksums(cache, monkeypatch):
    """Preparing what is there reads none of it."""
    counted = []
    monkeypatch.setattr(ragged, "_checksum", lambda path, intact=ragged._checksum: counted.append(path) or intact(path))
    ragged.prepare(cache, lambda: pytest.fail("the cache exists"))
    assert not counted
    monkeypatch.setenv("SLURM_LOCALID", "1")
    other = ragged.read(cache)
    assert not counted
    monkeypatch.setenv("LOCAL_RANK", "0")
    first = ragged.read(cache)
    assert len(counted) == 6
    assert (first.fingerprint, first.facts) == (other.fingerprint, other.facts)


def test_what_a_killed_process_left_is_removed_a_day_later(tmp_path):
    for age, name in ((2, ".set-old"), (0, ".set-new"), (2, ".other-old")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.values.npy").touch()
        os.utime(tmp_path / name, (time.time() - age * 86400,) * 2)
    ragged.prepare(tmp_path / "set", lambda: ({"train": rows(), "test": rows()}, {}))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other-old", ".set-new", "set", "set.lock"]


def test_nothing_left_to_train_on_is_named(monkeypatch):
    data = Memory(batch_size=2, seed=0)
    monkeypatch.setattr(data, "load", lambda: (dict.fromkeys(("train", "val", "test"), rows(())), "fixed"))
    with pytest.raises(UserError, match=r"No row is left to train on; raise limits\.cases"):
        data.train_dataloader()


def test_a_full_disk_is_named_and_leaves_nothing_half_written(cache, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    for target in (cache, cache.parent / "new"):
        with pytest.raises(UserError, match="disk is full"):
            ragged.write(target, {"train": rows((9,))}, {})
    assert [path.name for path in cache.parent.iterdir()] == ["set"]
    assert equal(ragged.read(cache).splits["train"], rows())


def test_another_error_of_the_disk_is_not_called_full(cache, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(np, "save", denied)
    with pytest.raises(PermissionError):
        ragged.write(cache, {"train": rows((9,))}, {})
    assert [path.name for path in cache.parent.iterdir()] == ["set"]


def test_writing_replaces_an_existing_cache(cache):
    ragged.write(cache, {"train": rows((1,))}, {})
    stored = ragged.read(cache)
    assert stored.splits.keys() == {"train"}
    assert equal(stored.splits["train"], rows((1,)))
    shutil.rmtree(cache)
    assert ragged.read(cache) is None


def test_sequences_are_laid_end_to_end_in_the_asked_type():
    laid = ragged.lay_out([np.array([[1.0], [2.0]]), np.array([[3.0]])], np.array([7, 8]), np.float32)
    assert laid.values.tolist() == [[1], [2], [3]]
    assert (laid.values.dtype, laid.offsets.dtype) == (np.float32, np.int64)
    assert laid.offsets.tolist() == [0, 2, 3]
    assert ragged.lay_out([np.ones(2, np.uint16)], np.array([0])).values.dtype == np.uint16
    with pytest.raises(TypeError, match="cast"):
        ragged.lay_out([np.ones(2)], np.array([0]), np.int64)


def test_the_state_of_files_follows_name_size_and_time(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    states = set()
    for path, text, when in ((one, "a", 1), (one, "ab", 1), (one, "ab", 2), (other, "ab", 2)):
        path.write_text(text)
        os.utime(path, ns=(when, when))
        states.add(ragged.state_of([path]))
    assert len(states | {ragged.state_of([one, other])}) == 5
    assert ragged.state_of([one]) in states


def test_what_is_not_prepared_names_the_command(cache):
    assert ragged.read_prepared(cache, "lra/listops").splits.keys() == {"train", "test"}
    with pytest.raises(UserError, match=r"none; run `python scripts/prepare\.py task=lra/listops`"):
        ragged.read_prepared(cache.parent / "none", "lra/listops")
