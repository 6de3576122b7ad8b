"""Time-series data sets: sizes, missing values, splits, normalisation, and files that are missing or damaged."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from subquad import torchvision_shim  # noqa: F401 # before lightning, which imports torchvision
from subquad.data.time_series import TimeSeries
from subquad.data.time_series_files import interpolate, write_standin
from subquad.data.time_series_sets import SETS
from subquad.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs" / "task"
HEADER = "@problemName Mine\n@timeStamps false\n@univariate false\n"
LABELLED = HEADER + "@classLabel true a b\n@data\n"


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def ready(root: Path, dataset: str = "Mine", kind: str = "classification", **settings: Any) -> TimeSeries:
    data = TimeSeries(root=str(root), dataset=dataset, kind=kind, **{"batch_size": 16, "seed": 0} | settings)
    data.prepare_data()
    return data


def standin(tmp_path: Path, kind: str = "classification", **settings: Any) -> TimeSeries:
    if not (tmp_path / "mine").exists():
        TimeSeries.write_standin(tmp_path / "mine", "Mine", kind)
    return ready(tmp_path, kind=kind, folder=str(tmp_path / "mine"), **settings)


def of_text(tmp_path: Path, train: str, test: str, **settings: Any) -> TimeSeries:
    (tmp_path / "Mine_TRAIN.ts").write_text(train)
    (tmp_path / "Mine_TEST.ts").write_text(test)
    return ready(tmp_path, folder=str(tmp_path), **settings)


def raw(data: TimeSeries, split: str) -> list[np.ndarray]:
    rows = data._cache.splits[split]
    return [rows[i] for i in range(len(rows))]


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


# missing values


def test_interpolation_by_hand():
    nan = np.nan
    filled = interpolate(np.array([nan, nan, 2.0, nan, nan, 8.0, nan]))
    np.testing.assert_allclose(filled, [2, 2, 2, 4, 6, 8, 8])
    assert np.isnan(interpolate(np.array([nan, nan]))).all()


def test_missing_values_in_files(tmp_path):
    train = LABELLED + "?,1,?,5:7,NaN,?,9:a\n?,?:1,3:b\n"
    data = of_text(tmp_path, train, LABELLED + ":0,2:a\n", protocol="paper")
    first, second = raw(data, "train")
    np.testing.assert_allclose(first, np.array([[1, 1, 3, 5], [7, 23 / 3, 25 / 3, 9]]).T, rtol=1e-6)
    assert np.isnan(second[:, 0]).all()
    observed = np.array([1, 1, 3, 5])
    np.testing.assert_allclose(data.splits["train"][0][:, 0], (observed - 2.5) / observed.std(ddof=1), rtol=1e-6)
    np.testing.assert_array_equal(data.splits["train"][1][:, 0], [0, 0])  # the training mean
    np.testing.assert_array_equal(data.splits["test"][0][:, 0], [0, 0])  # an empty channel is a missing one


def test_wholly_missing_channel_is_the_training_mean_under_minmax(tmp_path):
    data = of_text(
        tmp_path, LABELLED + "0,2,10:1,1,2:a\n?:3:b\n", LABELLED + "0:2:a\n", protocol="paper", normalization="minmax"
    )
    np.testing.assert_allclose(data.splits["train"][1][:, 0], 0.4, rtol=1e-6)


def test_time_stamps_of_regression_files_are_dropped(tmp_path):
    header = "@problemName Mine\n@timeStamps true\n@univariate false\n@targetLabel true\n@data\n"
    stamped = "(2016-01-11 17:00:00,1.5),(2016-01-11 17:10:00,?),(2016-01-11 17:20:00,2.5)"
    train = f"{header}{stamped}:{stamped}:17.25\n"
    data = of_text(tmp_path, train, train, kind="regression", protocol="paper")
    np.testing.assert_allclose(raw(data, "train")[0], [[1.5, 1.5], [2, 2], [2.5, 2.5]])
    assert data.splits["test"].targets == np.float32(17.25)


# protocols and subsets


def cases_of(data: TimeSeries, *splits: str) -> list[bytes]:
    """Cases as bytes; comparable within one module, whose splits share one normalisation."""
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


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_val_fraction_that_empties_a_split_is_refused(root, fraction):
    with pytest.raises(UserError, match="val_fraction"):
        _ = ready(root, "BasicMotions", val_fraction=fraction).splits


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


@pytest.mark.parametrize(
    "setting",
    [{"kind": "clustering"}, {"protocol": "dirty"}, {"normalization": "zscore"}, {"max_len_from": "test"},
     {"pad": "left"}, {"subsample_factor": 0}, {"max_cases": 0}],
)  # fmt: skip
def test_settings_that_do_not_exist_are_refused(root, setting):
    with pytest.raises(UserError, match=next(iter(setting))):
        ready(root, "BasicMotions", **setting)


# files of one's own


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_standin_runs_through_the_real_parser(tmp_path, kind):
    data = standin(tmp_path, kind)
    assert (len(raw(data, "train")), len(raw(data, "test"))) == (24, 12)
    assert (data.spec.max_len, data.spec.channels, data.spec.classes) == (
        13,
        3,
        3 if kind == "classification" else None,
    )
    assert all(np.isfinite(rows.values).all() for rows in data.splits.values())
    assert len(np.unique(data.splits["train"].lengths)) > 1
    text = (tmp_path / "mine" / "Mine_TRAIN.ts").read_text()
    assert "?" in text
    assert np.isnan(raw(data, "train")[2][:, -1]).all()
    assert list(data.val_dataloader())


def test_folder_is_looked_at_alone_and_may_have_any_size(tmp_path, root):
    write_standin(tmp_path / "mine", "JapaneseVowels", "classification")
    data = ready(tmp_path, "JapaneseVowels", folder=str(tmp_path / "mine"))
    assert data.spec.channels == 3
    with pytest.raises(UserError, match="BasicMotions_TRAIN.ts"):
        ready(tmp_path, "BasicMotions", folder=str(tmp_path / "mine"))


def test_archive_folder_goes_before_sktime_and_a_wrong_size_is_refused(tmp_path):
    write_standin(tmp_path / "uea" / "JapaneseVowels", "JapaneseVowels", "classification")
    with pytest.raises(
        UserError, match=r"train 24 instead of 270, test 12 instead of 370, channels 3 instead of 12.*uea"
    ):
        ready(tmp_path, "JapaneseVowels")
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_wrong_kind_of_a_known_set_is_refused(tmp_path):
    with pytest.raises(UserError, match="classes None instead of 9"):
        ready(tmp_path, "JapaneseVowels", "regression")


def test_wrong_size_is_refused_from_a_cache_too(tmp_path):
    write_standin(tmp_path / "uea" / "BasicMotions", "BasicMotions", "classification")
    ready(tmp_path, "BasicMotions", folder=str(tmp_path / "uea" / "BasicMotions"))
    with pytest.raises(UserError, match="instead of 40"):
        _ = ready(tmp_path, "BasicMotions").spec


def test_unconfirmed_counts_are_logged_but_confirmed_shapes_are_checked(tmp_path, caplog):
    folder = tmp_path / "tser" / "AppliancesEnergy"
    write_standin(folder, "AppliancesEnergy", "regression", channels=24, steps=(143, 143))
    assert ready(tmp_path, "AppliancesEnergy", "regression").spec.channels == 24
    assert "AppliancesEnergy has 24 train cases where 96 were expected" in caplog.text
    write_standin(folder, "AppliancesEnergy", "regression", channels=5, steps=(143, 143))
    with pytest.raises(UserError, match="channels 5 instead of 24"):
        ready(tmp_path, "AppliancesEnergy", "regression")


def test_missing_files_name_place_archive_and_command(tmp_path):
    with pytest.raises(UserError) as caught:
        ready(tmp_path, "PEMS-SF")
    for part in ("PEMS-SF_TRAIN.ts", "PEMS-SF_TEST.ts", str(tmp_path / "uea" / "PEMS-SF"), "timeseriesclassification.com",
                 "python scripts/prepare.py task=uea/pems_sf"):  # fmt: skip
        assert part in str(caught.value)
    with pytest.raises(UserError, match=r"TSER.*task=tser/custom task.data.dataset=Nobody"):
        ready(tmp_path, "Nobody", "regression")


def test_one_file_alone_is_not_a_data_set(tmp_path):
    write_standin(tmp_path, "Mine", "classification")
    (tmp_path / "Mine_TEST.ts").unlink()
    with pytest.raises(UserError, match="not both in"):
        ready(tmp_path, folder=str(tmp_path))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("", "truncated"),
        (LABELLED, "truncated"),
        ("1,2:3,4:a\n", "truncated"),
        (LABELLED + "1,2:3,4:a\n1,2:3", "truncated"),
        (LABELLED + "1,2:3,4:a\n1,2:3,4:", "Case 2 .* no label"),
        (LABELLED + "1,2:3,x:a\n", "truncated"),
        (LABELLED + "1,2:3,4:a\n1,2,3:4,5:b\n", "Case 2 .* channels of 2 and 3 steps"),
        (LABELLED + "::a\n", "Case 1 .* no time steps"),
        (LABELLED + "1,inf:3,4:a\n", "infinite"),
        (HEADER + "@classLabel false\n@data\n1,2:3,4\n", "has no labels"),
        (LABELLED + "1,2:3,4:5,6:a\n", "3 channels and Mine_TEST.ts has 2"),
        (LABELLED + "1,2:3,4:b\n", r"labels that TRAIN lacks \(a\)"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, train, message):
    with pytest.raises(UserError, match=message) as caught:
        of_text(tmp_path, train, LABELLED + "1,2:3,4:a\n")
    assert str(tmp_path) in str(caught.value)


def test_binary_rubbish_is_refused(tmp_path):
    write_standin(tmp_path, "Mine", "classification")
    (tmp_path / "Mine_TEST.ts").write_bytes(bytes(range(256)) * 4)
    with pytest.raises(UserError, match=r"Mine_TEST.ts is truncated or not a .ts file"):
        ready(tmp_path, folder=str(tmp_path))


@pytest.mark.parametrize("target", ["a", "?", "inf", ""])
def test_regression_needs_finite_numbers(tmp_path, target):
    text = HEADER + "@targetLabel true\n@data\n1,2:3,4:1.5\n1,2:3,4:"
    with pytest.raises(UserError, match=r"Mine_TRAIN.ts"):
        of_text(tmp_path, text + target, text + "2", kind="regression")


# the cache


def test_later_runs_do_not_import_sktime(root):
    first = ready(root, "JapaneseVowels", protocol="paper")
    program = (
        "import sys; from subquad import torchvision_shim; from subquad.data.time_series import TimeSeries\n"
        "data = TimeSeries(root=sys.argv[1], dataset='JapaneseVowels', kind='classification', batch_size=4, seed=0)\n"
        "data.prepare_data(); print(len(data.splits['test']), data.fingerprint, 'sktime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, root], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["370", first.fingerprint, "False"], done.stderr


def test_damaged_cache_is_refused(tmp_path):
    cache = standin(tmp_path)._cache_folder
    values = cache / "train.values.npy"
    values.write_bytes(values.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="damaged"):
        standin(tmp_path)


def test_data_that_was_not_prepared_names_the_command(tmp_path):
    write_standin(tmp_path, "Mine", "classification")
    data = TimeSeries(
        root=str(tmp_path), dataset="Mine", kind="classification", folder=str(tmp_path), batch_size=2, seed=0
    )
    with pytest.raises(UserError, match=r"scripts/prepare.py"):
        _ = data.spec


def test_changed_files_are_parsed_anew_and_change_the_fingerprint(tmp_path):
    before = standin(tmp_path).fingerprint
    assert standin(tmp_path, protocol="paper").fingerprint == before
    write_standin(tmp_path / "mine", "Mine", "classification", train=30, seed=1)
    after = standin(tmp_path, protocol="paper")
    assert len(after.splits["train"]) == 30
    assert after.fingerprint != before


# configurations


def test_every_known_set_has_its_configuration_and_no_other_exists():
    found = {}
    for group in ("uea", "tser"):
        for path in (CONFIGS / group).glob("[!_]*.yaml"):
            config = yaml.safe_load(path.read_text())
            assert config["name"] == path.stem
            assert config["defaults"] == [f"_{group}"]
            if path.stem != "custom":
                found[config["data"]["dataset"]] = f"{group}/{path.stem}"
    assert found == {name: known.task for name, known in SETS.items()}
    assert all((known.classes is None) == known.task.startswith("tser/") for known in SETS.values())


def test_headers_of_configurations_state_the_sizes_that_are_checked():
    for known in SETS.values():
        header = (CONFIGS / f"{known.task}.yaml").read_text().split("defaults:")[0]
        assert f"{known.train}/{known.test} cases" in header
        assert f"{known.channels} channel" in header
        assert f"{known.steps} steps" in header
        assert known.classes is None or f"{known.classes} classes" in header
