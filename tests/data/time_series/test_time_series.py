"""Time-series data sets: sizes, batches, normalisation, splits and subsets."""

import numpy as np
import pytest
import torch
from time_series_cases import LABELLED, of_text, raw, ready

from subquad.data.time_series.time_series import TimeSeries


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


# what sktime ships


@pytest.mark.parametrize(
    ("dataset", "kind", "train", "test", "channels", "steps", "classes"),
    [
        ("JapaneseVowels", "classification", 270, 370, 12, 29, 9),
        ("BasicMotions", "classification", 40, 40, 6, 100, 4),
        ("Covid3Month", "regression", 140, 61, 1, 84, None),
        ("Tecator", "regression", 172, 43, 1, 100, None),
    ],
)
def test_shipped_sets_have_the_sizes_of_the_archive(root, dataset, kind, train, test, channels, steps, classes):
    data = ready(root, dataset, kind, protocol="paper")
    assert (len(data.splits["train"]), len(data.splits["test"])) == (train, test)
    assert (data.spec.max_len, data.spec.channels, data.spec.classes) == (steps, channels, classes)
    targets = data.splits["test"].targets
    if classes:
        assert targets.dtype == np.int64
        assert set(targets.tolist()) == set(range(classes))
    else:
        assert targets.dtype == np.float32
        assert len(np.unique(targets)) > 20


def test_targets_are_the_raw_values_and_the_labels_in_order(root):
    tecator = ready(root, "Tecator", "regression", protocol="paper")
    np.testing.assert_allclose(tecator.splits["train"].targets[:2], [22.5, 40.1])
    motions = ready(root, "BasicMotions", protocol="paper")
    assert motions._cache.facts["labels"] == ["badminton", "running", "standing", "walking"]
    assert motions.splits["train"].targets[0] == 2  # the file begins with Standing


def test_japanese_vowels_keeps_true_lengths(root):
    data = ready(root, "JapaneseVowels", protocol="paper")
    train, test = data.splits["train"].lengths, data.splits["test"].lengths
    assert (train.min(), train.max(), test.min(), test.max()) == (7, 26, 7, 29)
    np.testing.assert_allclose(raw(data, "train")[0][:3, 0], [1.860936, 1.891651, 1.939205], rtol=1e-6)


def test_max_len_from_train_clips_the_one_longer_test_case(root):
    data = ready(root, "JapaneseVowels", protocol="paper", max_len_from="train")
    everything = ready(root, "JapaneseVowels", protocol="paper").splits["test"].lengths
    assert data.spec.max_len == 26
    assert (everything > 26).sum() == 1
    np.testing.assert_array_equal(data.splits["test"].lengths, np.minimum(everything, 26))


def test_subsampling_keeps_every_kth_step(root):
    data = ready(root, "JapaneseVowels", protocol="paper", subsample_factor=4)
    assert data.spec.max_len == 8
    assert data.splits["test"].lengths.max() == 8
    before, after = raw(data, "train")[5], data.splits["train"][5]
    kept = np.concatenate([case[::4] for case in raw(data, "train")]).astype(np.float64)
    np.testing.assert_allclose(after, (before[::4] - kept.mean(0)) / kept.std(0, ddof=1), rtol=1e-4, atol=1e-5)


# batches


def test_batches_hold_padded_float_steps_masks_and_classes(root):
    data = ready(root, "JapaneseVowels", protocol="paper")
    batches = list(data.train_dataloader())
    assert sum(len(batch) for batch in batches) == 270
    for batch in batches:
        assert batch.inputs.shape == (len(batch), 29, 12)
        assert (batch.inputs.dtype, batch.valid.dtype, batch.target.dtype) == (torch.float32, torch.bool, torch.int64)
        assert (batch.inputs[~batch.valid] == 0).all()
    assert sum(int(batch.valid.sum()) for batch in batches) == data.splits["train"].lengths.sum()


@pytest.mark.parametrize(("pad", "alike"), [("max_len", False), ("batch", True)])
def test_rows_of_a_batch_are_drawn_at_random_where_all_are_padded_alike(root, pad, alike):
    data = ready(root, "JapaneseVowels", protocol="paper", pad=pad)
    lengths = [data.splits["train"].lengths[rows] for rows in data.train_dataloader().batch_sampler]
    assert (np.mean([batch.std() for batch in lengths]) < 1) == alike


def test_pad_batch_pads_to_the_longest_row_only(root):
    data = ready(root, "JapaneseVowels", protocol="paper", pad="batch")
    widths = {batch.inputs.shape[1] for batch in data.test_dataloader()}
    assert max(widths) == 29
    assert min(widths) < 15


def test_regression_batches_hold_real_targets_and_no_mask_at_equal_lengths(root):
    batch = next(iter(ready(root, "Tecator", "regression").train_dataloader()))
    assert batch.inputs.shape == (16, 100, 1)
    assert batch.target.dtype == torch.float32
    assert batch.valid is None


# normalisation


@pytest.mark.parametrize("protocol", ["paper", "clean"])
def test_standardization_uses_the_training_split_alone(root, protocol):
    data = ready(root, "JapaneseVowels", protocol=protocol)
    train, test = (data.splits[name].values.astype(np.float64) for name in ("train", "test"))
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(train.std(0, ddof=1), 1, atol=1e-5)
    assert np.abs(test.mean(0)).max() > 0.02
    assert np.abs(test.std(0) - 1).max() > 0.02


def test_standard_deviation_is_the_sample_one(tmp_path):
    data = of_text(tmp_path, LABELLED + "1,2:a\n6:b\n", LABELLED + "3:a\n", protocol="paper")
    np.testing.assert_allclose(data.splits["train"].values[:, 0], (np.array([1, 2, 6]) - 3) / np.sqrt(7), rtol=1e-6)
    np.testing.assert_allclose(data.splits["test"].values, [[0.0]], atol=1e-7)


def test_minmax_maps_the_training_range_to_zero_and_one(root):
    data = ready(root, "JapaneseVowels", protocol="paper", normalization="minmax")
    np.testing.assert_allclose(data.splits["train"].values.min(0), 0, atol=1e-6)
    np.testing.assert_allclose(data.splits["train"].values.max(0), 1, atol=1e-6)
    assert data.splits["test"].values.max() > 1


def test_per_sample_choices_normalise_each_case(root):
    by_std = ready(root, "JapaneseVowels", protocol="paper", normalization="per_sample_std").splits["test"][7]
    np.testing.assert_allclose(by_std.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(by_std.std(0, ddof=1), 1, rtol=1e-5)
    by_range = ready(root, "JapaneseVowels", protocol="paper", normalization="per_sample_minmax").splits["test"][7]
    np.testing.assert_allclose((by_range.min(0), by_range.max(0)), ([0.0] * 12, [1.0] * 12), atol=1e-6)


@pytest.mark.parametrize("how", ["standardization", "minmax", "per_sample_std", "per_sample_minmax"])
def test_constant_channels_and_single_steps_stay_finite(tmp_path, how):
    train = LABELLED + "5.1,5.1,5.1:1,2,4:a\n5.1:2:b\n"
    data = of_text(tmp_path, train, LABELLED + "5.1:3:a\n", protocol="paper", normalization=how)
    np.testing.assert_allclose(data.splits["train"].values[:, 0], 0, atol=1e-6)
    assert np.isfinite(data.splits["test"].values).all()


# protocols and subsets


def cases_of(data: TimeSeries, *splits: str) -> list[bytes]:
    """Cases as bytes, comparable between the splits of one data set, which have the same normalisation."""
    return [data.splits[name][i].tobytes() for name in splits for i in range(len(data.splits[name]))]


def test_paper_protocol_validates_on_test(root):
    data = ready(root, "JapaneseVowels", protocol="paper")
    assert cases_of(data, "val") == cases_of(data, "test")
    assert len(data.splits["train"]) == 270


def test_clean_protocol_divides_train_and_leaves_test(root):
    data, other = ready(root, "JapaneseVowels"), ready(root, "JapaneseVowels", split_seed=1)
    train, val, test = (set(cases_of(data, name)) for name in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (216, 54, 370)
    assert not train & val | val & test | train & test
    assert sum(len(data.splits[name].values) for name in ("train", "val")) == sum(map(len, raw(data, "train")))
    np.testing.assert_array_equal(np.bincount(data.splits["val"].targets), [6] * 9)
    assert cases_of(data, "val") == cases_of(ready(root, "JapaneseVowels"), "val")
    assert data.splits["val"].lengths.tolist() != other.splits["val"].lengths.tolist()
    assert len(ready(root, "JapaneseVowels", val_fraction=0.5).splits["val"]) == 135


def test_clean_regression_split(root):
    data = ready(root, "Tecator", "regression")
    targets = np.concatenate([data.splits["train"].targets, data.splits["val"].targets])
    assert (len(data.splits["train"]), len(data.splits["val"])) == (137, 35)
    np.testing.assert_array_equal(np.sort(targets), np.sort(data._cache.splits["train"].targets))


def test_clean_split_with_classes_too_small_to_stratify(tmp_path):
    cases = [f"{i},{i}:{label}\n" for i, label in enumerate("aaaaaaaaab")]
    header = LABELLED.replace("univariate false", "univariate true")
    data = of_text(tmp_path, header + "".join(cases), header + cases[0])
    assert np.bincount(data.splits["train"].targets).tolist() == [7, 1]
    assert data.splits["val"].targets.tolist() == [0, 0]


def test_max_cases_is_stratified_seeded_and_changes_no_shape(root):
    data = ready(root, "JapaneseVowels", protocol="paper", max_cases=45)
    assert np.bincount(data.splits["train"].targets).tolist() == [5] * 9
    full = np.bincount(data._cache.splits["test"].targets)
    drawn = np.bincount(data.splits["test"].targets)
    assert drawn.sum() == 45
    assert np.abs(drawn - full * 45 / 370).max() <= 1
    assert (data.spec.max_len, data.spec.classes) == (29, 9)
    assert cases_of(data, "train") == cases_of(ready(root, "JapaneseVowels", protocol="paper", max_cases=45), "train")
    clean = ready(root, "JapaneseVowels", max_cases=45)
    assert len(clean.splits["train"]) + len(clean.splits["val"]) == 45
    assert len(set(ready(root, "JapaneseVowels", protocol="paper", max_cases=9).splits["train"].targets.tolist())) == 9


def test_max_cases_of_regression_is_a_shuffled_subset(root):
    drawn = ready(root, "Tecator", "regression", protocol="paper", max_cases=20).splits["train"].targets
    every = ready(root, "Tecator", "regression", protocol="paper").splits["train"].targets
    assert len(drawn) == 20
    assert set(drawn.tolist()) <= set(every.tolist())
    assert drawn.tolist() != every[:20].tolist()
