"""Requirements on every data set, tested with small real configurations."""

import functools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from runs import composed, data_root, prepared

TASKS = {
    "lra/listops": ("scale=smoke",),
    "uea/japanese_vowels": (),
    "uea/basic_motions": (),
    "tser/covid3month": (),
    "tser/tecator": (),
    "lra/text": ("scale=smoke", "data=synthetic"),
    "lra/image": ("scale=smoke", "data=synthetic"),
    "lra/pathfinder32": ("scale=smoke", "data=synthetic"),
    "glue/sst2": ("scale=smoke", "data=synthetic"),
    "glue/qnli": ("scale=smoke", "data=synthetic"),
    "glue/qqp": ("scale=smoke", "data=synthetic"),
    "text/imdb": ("scale=smoke", "data=synthetic"),
    "text/custom": ("scale=smoke", "data=synthetic", "limits.cases=null"),
    "tokens/custom": ("scale=smoke", "data=synthetic", "limits.cases=null"),
    "uea/handwriting": ("data=synthetic",),
    "digits_pixels": (),
    "uea/pems_sf": ("data=synthetic", "data.pad=batch", "data.normalization=per_sample_std"),
    "tser/appliances_energy": ("data=synthetic",),
    "tser/beijing_pm10_quality": ("data=synthetic", "data.max_len_from=train", "data.normalization=minmax"),
}
TWICE = ("tser/covid3month", "tser/tecator")
"""Data sets of the archive that contain some series more than once."""
WITH_TEST_AS_VAL = ("uea", "tser", "lra/text", "glue", "text", "tokens")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return data_root(tmp_path_factory.getbasetemp())


def make(root, task, *overrides):
    return prepared(composed(root, root / "unused", f"task={task}", *TASKS[task], *overrides))


shared = functools.cache(make)


def contents(split):
    return [split[i].tobytes() for i in range(len(split))]


@pytest.fixture(params=TASKS, scope="module")
def task(request):
    return request.param


@pytest.mark.parametrize("protocol", ["paper", "clean"])
def test_batches_are_what_the_spec_says(root, task, protocol):
    data = shared(root, task, f"protocol={protocol}")
    spec = data.spec
    assert (spec.vocab is None) != (spec.channels is None)
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        for batch in loader:
            assert batch.inputs.shape[1] <= spec.max_len
            if spec.vocab is None:
                assert batch.inputs.dtype == torch.float32
                assert batch.inputs.shape[2] == spec.channels
                assert batch.inputs.isfinite().all()
            else:
                assert batch.inputs.dtype == torch.int64
                assert batch.inputs.min() >= 0
                assert batch.inputs.max() < spec.vocab
            if batch.valid is not None:
                assert batch.valid.any(1).all()
                assert (batch.inputs[~batch.valid] == 0).all()
            if spec.classes is None:
                assert batch.target.dtype == torch.float32
                assert batch.target.isfinite().all()
            else:
                assert batch.target.dtype == torch.int64
                assert batch.target.min() >= 0
                assert batch.target.max() < spec.classes


def test_splits_are_disjoint_where_the_protocol_says_so(root, task):
    data = shared(root, task, "protocol=clean")
    clean = {name: contents(split) for name, split in data.splits.items()}
    raw = Counter(row for rows in clean.values() for row in rows)
    twice = sum(count > 1 for count in raw.values())
    assert twice == 0 or task in TWICE, f"{twice} rows are there more than once; draw others, or add it to TWICE"
    for other in ("train", "test"):
        assert len(set(clean["val"]) & set(clean[other])) <= twice
    paper = {name: contents(split) for name, split in shared(root, task, "protocol=paper").splits.items()}
    if task.startswith(WITH_TEST_AS_VAL):
        assert paper["val"] == paper["test"]
        assert len(clean["train"]) + len(clean["val"]) == len(paper["train"])
    else:
        assert paper == clean


def test_one_seed_gives_one_order(root, task):
    def order(data, epoch):
        loader = data.train_dataloader()
        loader.batch_sampler.set_epoch(epoch)
        return list(loader.batch_sampler)

    first, again, other = (make(root, task, f"seed={seed}") for seed in (0, 0, 1))
    assert order(first, 1) == order(again, 1)
    assert order(first, 1) != order(other, 1)
    assert order(first, 1) != order(again, 0)


def test_the_seed_of_training_does_not_change_the_splits(root, task):
    one, other = shared(root, task, "protocol=clean"), make(root, task, "protocol=clean", "seed=1")
    assert one.fingerprint == other.fingerprint
    for name in one.splits:
        assert contents(one.splits[name]) == contents(other.splits[name])


def test_baselines_are_finite_and_named(root, task):
    data = shared(root, task, "protocol=paper")
    baselines = data.baselines()
    assert baselines
    for score in baselines.values():
        assert math.isfinite(score)
        assert score > 0
        assert data.spec.classes is None or score < 1


def test_validation_and_test_see_every_row_once(root, task):
    data = shared(root, task, "protocol=paper")
    for name in ("val", "test"):
        targets = torch.cat([batch.target for batch in getattr(data, f"{name}_dataloader")()])
        assert np.array_equal(np.sort(targets.numpy()), np.sort(data.splits[name].targets))
