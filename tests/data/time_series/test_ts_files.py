"""Time-series files: missing values, search for files, errors, and the cache."""

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from time_series_cases import HEADER, LABELLED, of_text, raw, ready, synthetic

from subquad.config.task_metadata import about_task
from subquad.data.ragged import Ragged
from subquad.data.time_series.sets import SETS, check_size
from subquad.data.time_series.time_series import TimeSeries
from subquad.data.time_series.ts_files import Source, interpolate, parse, write_synthetic
from subquad.utils.errors import UserError

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs" / "task"


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
        tmp_path, LABELLED + "5,7,15:1,1,2:a\n?:3:b\n", LABELLED + "5:2:a\n", protocol="paper", normalization="minmax"
    )
    np.testing.assert_allclose(data.splits["train"][1][:, 0], 0.4, rtol=1e-6)


def test_time_stamps_of_regression_files_are_dropped(tmp_path):
    header = "@problemName Mine\n@timeStamps true\n@univariate false\n@targetLabel true\n@data\n"
    stamped = "(2016-01-11 17:00:00,1.5),(2016-01-11 17:10:00,?),(2016-01-11 17:20:00,2.5)"
    train = f"{header}{stamped}:{stamped}:17.25\n"
    data = of_text(tmp_path, train, train, kind="regression", protocol="paper")
    np.testing.assert_allclose(raw(data, "train")[0], [[1.5, 1.5], [2, 2], [2.5, 2.5]])
    assert data.splits["test"].targets == np.float32(17.25)


# files of one's own


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_synthetic_runs_through_the_real_parser(tmp_path, kind):
    data = synthetic(tmp_path, kind)
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


def test_folder_is_looked_at_alone_and_may_have_any_size(tmp_path):
    write_synthetic(tmp_path / "mine", "JapaneseVowels", "classification")
    data = ready(tmp_path, "JapaneseVowels", folder=str(tmp_path / "mine"))
    assert data.spec.channels == 3
    with pytest.raises(UserError, match=r"BasicMotions_TRAIN\.ts"):
        ready(tmp_path, "BasicMotions", folder=str(tmp_path / "mine"))


def test_archive_folder_goes_before_sktime_and_a_wrong_size_is_refused(tmp_path):
    write_synthetic(tmp_path / "uea" / "JapaneseVowels", "JapaneseVowels", "classification")
    with pytest.raises(
        UserError, match=r"train 24 instead of 270, test 12 instead of 370, channels 3 instead of 12.*uea"
    ):
        ready(tmp_path, "JapaneseVowels")
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_wrong_kind_of_a_known_set_is_refused(tmp_path):
    with pytest.raises(UserError, match="classes None instead of 9"):
        ready(tmp_path, "JapaneseVowels", "regression")


def test_wrong_size_is_refused_from_a_cache_too(tmp_path):
    write_synthetic(tmp_path / "uea" / "BasicMotions", "BasicMotions", "classification")
    ready(tmp_path, "BasicMotions", folder=str(tmp_path / "uea" / "BasicMotions"))
    with pytest.raises(UserError, match="instead of 40"):
        _ = ready(tmp_path, "BasicMotions").spec


def test_unconfirmed_counts_are_logged_but_confirmed_shapes_are_checked(tmp_path, caplog):
    folder = tmp_path / "tser" / "AppliancesEnergy"
    write_synthetic(folder, "AppliancesEnergy", "regression", channels=24, steps=(143, 143))
    assert ready(tmp_path, "AppliancesEnergy", "regression").spec.channels == 24
    assert "AppliancesEnergy has 24 train cases where 95 were expected" in caplog.text
    write_synthetic(folder, "AppliancesEnergy", "regression", channels=5, steps=(143, 143))
    with pytest.raises(UserError, match="channels 5 instead of 24"):
        ready(tmp_path, "AppliancesEnergy", "regression")


def test_missing_files_name_place_archive_and_command(tmp_path):
    with pytest.raises(UserError) as caught:
        ready(tmp_path, "PEMS-SF")
    place, command = str(tmp_path / "uea" / "PEMS-SF"), "python scripts/prepare.py task=uea/pems_sf"
    for part in ("PEMS-SF_TRAIN.ts", "PEMS-SF_TEST.ts", place, "timeseriesclassification.com", command):
        assert part in str(caught.value)
    with pytest.raises(UserError, match=r"TSER.*task=tser/custom data.dataset=Nobody"):
        ready(tmp_path, "Nobody", "regression")


def test_one_file_alone_is_not_a_data_set(tmp_path):
    write_synthetic(tmp_path, "Mine", "classification")
    (tmp_path / "Mine_TEST.ts").unlink()
    with pytest.raises(UserError, match="not both in"):
        ready(tmp_path, folder=str(tmp_path))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("", "truncated"),
        (LABELLED, "truncated"),
        ("1,2:3,4:a\n", "truncated"),
        (LABELLED.replace("@timeStamps false\n", "") + "1,2:3,4:a\n", r"\(it has no line @timeStamps\)"),
        (HEADER + "@data\n1,2:3,4:a\n", r"\(it has no line @classLabel or @targetLabel\).*docs/data.md"),
        (LABELLED + "1,2:3,4:a\n1,2,:3,4,:a\n", r"\(line 7, channel 1 has a comma without a value; write \?"),
        (LABELLED + "1,2:3,4:a\n1,2:3", "line 7 has 1 channels, line 6 2"),
        (LABELLED + "1,2:3,4:a\n1,2:3,4:", "Case 2 .* no label"),
        (LABELLED + "1,2:3,x:a\n", "line 6, channel 2: could not convert string to float: 'x'"),
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


def test_the_file_of_the_documentation_is_complete(tmp_path):
    shown = (ROOT / "docs" / "data.md").read_text().partition("```text\n")[2].partition("```")[0]
    data = of_text(tmp_path, shown, shown)
    assert (len(raw(data, "train")), data.spec.channels, data.spec.classes) == (3, 2, 2)
    for line in (line for line in shown.splitlines(keepends=True) if line.startswith("@")):
        tag = line.split()[0]
        with pytest.raises(UserError, match=rf"\(it has no line ({tag}\)|{tag} or)"):
            of_text(tmp_path, shown.replace(line, ""), shown)


@pytest.mark.parametrize(("mark", "end"), [("\ufeff", "\n"), ("# comment\r\n", ",,\r\n")])
def test_marks_comments_and_commas_at_the_end_change_nothing(tmp_path, mark, end):
    text = LABELLED + "1,2:3,4:a\n"
    plain, marked = (of_text(tmp_path, *2 * (one,)) for one in (text, mark + text.replace("\n", end)))
    assert plain._cache.facts["labels"] == marked._cache.facts["labels"] == ["a"]
    np.testing.assert_array_equal(raw(plain, "train")[0], raw(marked, "train")[0])


@pytest.mark.parametrize(
    ("wrong", "case"),
    [
        ("@dimensions 3", 1), ("@seriesLength 3", 1), ("@equalLength true", 2), ("@univariate true", 1),
        ("@classLabel true b c", 1),
    ],
)  # fmt: skip
def test_a_header_that_lies_is_refused_in_own_files_only(tmp_path, wrong, case):
    text = f"{LABELLED.removesuffix('@data' + chr(10))}{wrong}\n@data\n1,2:3,4:a\n1,2,3:3,4,5:a\n"
    stated, number = text.lower().splitlines().index(wrong.lower()) + 1, text.splitlines().index("@data") + 1 + case
    with pytest.raises(
        UserError, match=rf"\(line {stated} states {wrong.lower()}, but line {number} has 2 channels of "
    ):
        of_text(tmp_path, text, text)
    path = tmp_path / "any.ts"
    path.write_text(text)
    assert len(parse(Source(path, path), "classification")[0]["train"]) == 2


def test_binary_rubbish_is_refused(tmp_path):
    write_synthetic(tmp_path, "Mine", "classification")
    (tmp_path / "Mine_TEST.ts").write_bytes(bytes(range(256)) * 4)
    with pytest.raises(UserError, match=r"Mine_TEST.ts is truncated or not a .ts file"):
        ready(tmp_path, folder=str(tmp_path))


@pytest.mark.parametrize("target", ["a", "?", "inf", ""])
def test_regression_needs_finite_numbers(tmp_path, target):
    text = HEADER + "@targetLabel true\n@data\n1,2:3,4:1.5\n1,2:3,4:"
    with pytest.raises(UserError, match=r"Mine_TRAIN.ts"):
        of_text(tmp_path, text + target, text + "2", kind="regression")


def test_numbers_are_no_classes(tmp_path):
    text = HEADER + "@targetLabel true\n@data\n1,2:3,4:1.5\n1,2:3,4:2"
    with pytest.raises(UserError, match=r"Mine_TRAIN.ts has numbers to predict .* task=tser/custom"):
        of_text(tmp_path, text, text, kind="classification")


# the cache


def test_later_runs_do_not_import_sktime(tmp_path, monkeypatch):
    first = ready(tmp_path, "JapaneseVowels", protocol="paper")
    for name in [name for name in sys.modules if name.partition(".")[0] == "sktime"]:
        monkeypatch.delitem(sys.modules, name)
    again = ready(tmp_path, "JapaneseVowels", protocol="paper")
    assert "sktime" not in sys.modules
    assert (len(again.splits["test"]), again.fingerprint) == (370, first.fingerprint)


def test_damaged_cache_is_refused(tmp_path):
    cache = synthetic(tmp_path).cache_folder
    values = cache / "train.values.npy"
    values.write_bytes(values.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="damaged"):
        synthetic(tmp_path).load()


def test_data_that_was_not_prepared_names_the_command(tmp_path):
    write_synthetic(tmp_path, "Mine", "classification")
    data = TimeSeries(
        root=str(tmp_path), dataset="Mine", kind="classification", folder=str(tmp_path), batch_size=2, seed=0
    )
    with pytest.raises(UserError, match=r"scripts/prepare.py"):
        _ = data.spec


@pytest.mark.parametrize("changed", ["Mine_TRAIN.ts", "Mine_TEST.ts"])
def test_a_changed_file_is_parsed_anew_and_changes_the_fingerprint(tmp_path, changed):
    before = synthetic(tmp_path)
    assert synthetic(tmp_path, protocol="paper").fingerprint == before.fingerprint
    path = tmp_path / "mine" / changed
    path.write_text(path.read_text() + "7:7:7:class0\n")
    after = synthetic(tmp_path)
    assert after.fingerprint != before.fingerprint
    split = "train" if "TRAIN" in changed else "test"
    assert len(raw(after, split)) == len(raw(before, split)) + 1


# configurations


def test_every_known_set_has_its_configuration_and_no_other_exists():
    tasks = {}
    for group in ("uea", "tser"):
        for path in set((CONFIGS / group).glob("*.yaml")) - {CONFIGS / group / "base.yaml"}:
            config = yaml.safe_load(path.read_text())
            assert config["task"]["key"] == path.stem
            if path.stem != "custom":
                tasks[config["data"]["dataset"]] = f"{group}/{path.stem}"
    assert tasks == {name: known.task for name, known in SETS.items()}
    assert all((known.classes is None) == known.task.startswith("tser/") for known in SETS.values())


@pytest.mark.parametrize("name", SETS)
def test_every_set_runs_from_its_synthetic(tmp_path, name):
    kind = "regression" if SETS[name].classes is None else "classification"
    data = ready(tmp_path, name, kind, synthetic=True)
    assert {split: len(rows) for split, rows in data.splits.items()} == {"train": 19, "val": 5, "test": 24}
    for batch in (*data.train_dataloader(), *data.val_dataloader(), *data.test_dataloader()):
        assert batch.inputs.isfinite().all()
        assert batch.inputs.shape[1:] == (data.spec.max_len, 3)


def of_size(known, **changes):
    """Splits and labels of an archive's size, without allocated memory."""
    size = {key: getattr(known, key) for key in ("train", "test", "channels", "steps", "classes")} | changes
    values = np.broadcast_to(np.float32(0), (size["steps"], size["channels"]))
    splits = {
        split: Ragged(
            values, np.minimum(np.arange(size[split] + 1) * size["steps"], size["steps"]), np.zeros(size[split])
        )
        for split in ("train", "test")
    }
    return splits, [str(number) for number in range(size["classes"] or 0)]


@pytest.mark.parametrize("name", SETS)
def test_every_number_of_every_set_is_checked(tmp_path, caplog, name):
    known = SETS[name]
    check_size(name, *of_size(known), tmp_path)
    assert not caplog.records
    for key in ("train", "test", "channels", "steps", *(["classes"] if known.classes else [])):
        splits, labels = of_size(known, **{key: getattr(known, key) - 1})
        if known.counts_from_memory and key in ("train", "test"):
            check_size(name, splits, labels, tmp_path)
            assert f"{name} has {len(splits[key])} {key} cases" in caplog.text
        else:
            with pytest.raises(UserError, match=f"{key} .* instead of {getattr(known, key)}"):
                check_size(name, splits, labels, tmp_path)


def test_the_sets_are_those_of_the_papers():
    groups = {kind: [known for known in SETS.values() if known.task.startswith(kind)] for kind in ("uea", "tser")}
    assert (len(groups["uea"]), len(groups["tser"])) == (25, 6 + 2)
    assert not any(known.counts_from_memory for known in groups["uea"])


def test_configurations_state_the_sizes_that_are_checked():
    for known in SETS.values():
        splits = about_task(known.task)["splits"]
        assert f"{known.train}/{known.test} cases" in splits
        assert f"{known.channels} channel" in splits
        assert f"{known.steps} steps" in splits
        assert known.classes is None or f"{known.classes} classes" in splits
