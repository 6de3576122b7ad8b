"""Records: what is written can be read back; a record is complete or absent."""

import json
import os
import re

import pytest
from runs import FACTS
from safetensors import SafetensorError

from subquad import records
from subquad.records import Record
from subquad.utils.errors import UserError, explain


def record(**changes) -> Record:
    return Record(**{**FACTS, **changes})


def test_a_record_comes_back_as_it_was_written(tmp_path):
    run = tmp_path / "a" / "b"
    assert records.read(run) is None
    records.write(record(), run)
    assert records.read(run) == record()
    assert sorted(path.name for path in run.iterdir()) == ["result.json"]


def test_success_removes_the_error_of_an_earlier_try(tmp_path):
    records.write_error("went wrong", "trace", tmp_path)
    kept = json.loads((tmp_path / "error.json").read_text())
    assert (kept["message"], kept["traceback"]) == ("went wrong", "trace")
    assert records.read(tmp_path) is None
    records.write(record(), tmp_path)
    assert not (tmp_path / "error.json").exists()


def test_a_write_that_dies_leaves_the_old_record(tmp_path, monkeypatch):
    records.write(record(), tmp_path)

    def die(*_):
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(OSError, match="power"):
        records.write(record(seed=1), tmp_path)
    assert records.read(tmp_path) == record()
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seed": 0}', "null"], ids=repr)
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(UserError, match=r"result\.json is damaged, or is not a record.*delete it"):
        records.read(tmp_path)


STRANGE = [
    ({"metrics": {"test/accuracy": "<b>0.9</b>"}}, "metrics.test/accuracy: Input should be a valid number"),
    ({"metrics": {"test/accuracy": True}}, "metrics.test/accuracy"),
    ({"baselines": {"majority class": float("inf")}}, "baselines.majority class"),
    ({"wall_seconds": float("nan")}, "wall_seconds"),
    ({"wall_seconds": -1}, "wall_seconds"),
    ({"finished": 5}, "finished"),
    ({"finished": None}, "finished"),
    ({"finished": "soon"}, "finished"),
    ({"machine": {}}, "machine: .*it has no cpu"),
    ({"scale": None}, "scale"),
    ({"protocol": 7}, "protocol"),
    ({"tags": "abc"}, "tags"),
    ({"seed": True}, "seed"),
    ({"config": FACTS["config"] | {"task": {"module": {}}}}, "config: .*it has no task.monitor"),
    ({"config": FACTS["config"] | {"data": 3}}, "config: .*data is 3"),
    ({"more": 1}, "more"),
]


@pytest.mark.parametrize(("change", "cause"), STRANGE, ids=str)
def test_what_a_record_cannot_hold_is_named_and_left_out(tmp_path, change, cause):
    records.write(record(), tmp_path / "good")
    records.write_json(tmp_path / "strange" / "result.json", FACTS | change)
    told: list[UserError] = []
    assert records.read_all(tmp_path, told.append) == [record()]
    [error] = told
    assert re.search(
        rf"strange/result\.json is damaged, or is not a record of this version \({cause}.*\); delete it to run",
        str(error),
    )


def test_a_record_that_cannot_be_opened_is_left_out(tmp_path):
    (tmp_path / "result.json").mkdir()
    with pytest.raises(UserError, match=r"result\.json cannot be read as a record \(Is a directory\)"):
        records.read(tmp_path)


@pytest.mark.parametrize("value", ["1", True, None], ids=repr)
def test_an_evaluation_of_no_number_is_named(tmp_path, value):
    records.write_evaluation(tmp_path, {"multiply": 2}, {"test/accuracy": value}, {})
    with pytest.raises(UserError, match=r"is not an evaluation of this version \(metrics\.test/accuracy"):
        records.read_evaluation(tmp_path, {"multiply": 2})


def test_the_record_of_another_run_is_refused_where_the_folder_tells(tmp_path):
    own, copy, named = (tmp_path / name for name in ("000000000000-s0", "000000000000-s1", "my-copy"))
    for folder in (own, copy, named):
        records.write(record(), folder)
    assert records.read(own) == records.read(named) == record()
    with pytest.raises(
        UserError, match=r"belongs to another run .*\(000000000000-s0, not 000000000000-s1\); delete it"
    ):
        records.read(copy)


MEASURED = {key: FACTS[key] for key in ("machine", "versions", "commit", "finished")} | {
    "value": 1.5, "measure": {"_target_": "x"}, "overrides": [],
}  # fmt: skip


def test_a_changed_number_in_any_file_is_noticed(tmp_path):
    run, measured = tmp_path / "000000000000-s0", tmp_path / "measured" / "abc.json"
    records.write(record(), run)
    records.write_evaluation(run, {"multiply": 2}, {"test/accuracy": 0.25}, {})
    records.write_measurement(records.Measurement(**MEASURED), measured)
    evaluated = records.evaluation_place(run, {"multiply": 2})
    for path, read, old, new in (
        (run / "result.json", lambda: records.read(run), b"0.17", b"0.71"),
        (evaluated, lambda: records.read_evaluation(run, {"multiply": 2}), b"0.25", b"0.35"),
        (measured, lambda: records.read_measurement(measured), b"1.5", b"2.5"),
    ):
        assert read() is not None
        path.write_bytes(path.read_bytes().replace(old, new))
        with pytest.raises(UserError, match=rf"{path.name} is damaged \(its checksum does not fit\); delete it to"):
            read()


def test_files_that_changed_places_are_noticed(tmp_path):
    one, other = tmp_path / "000000000000-s0", tmp_path / "000000000000-s1"
    for seed, run in enumerate((one, other)):
        records.write_evaluation(run, {"multiply": 2}, {"test/accuracy": seed / 4}, {})
        records.write_measurement(records.Measurement(**MEASURED), tmp_path / f"{seed}.json")
    os.replace(records.evaluation_place(one, {"multiply": 2}), records.evaluation_place(other, {"multiply": 2}))
    with pytest.raises(
        UserError, match=r"belongs to another run or setting \(000000000000-s0/\w+, not 000000000000-s1/"
    ):
        records.read_evaluation(other, {"multiply": 2})
    os.replace(tmp_path / "0.json", tmp_path / "1.json")
    with pytest.raises(UserError, match=r"belongs to another run or setting \(0, not 1\); delete it to measure again"):
        records.read_measurement(tmp_path / "1.json")


def test_a_file_that_the_record_does_not_know_is_refused(tmp_path):
    history = tmp_path / records.HISTORY
    history.write_text("step,train/loss\n3,1.25\n")
    kept = record(files=records.files_of(tmp_path))
    records.write(kept, tmp_path)
    assert records.read_curve(tmp_path, records.read(tmp_path)) == {3: {"train/loss": 1.25}}
    history.write_text("step,train/loss\n3,1.35\n")
    with pytest.raises(
        UserError, match=r"metrics\.csv is not the file that this run ended with .*; restore it, or delete"
    ):
        records.read_curve(tmp_path, kept)
    history.unlink()
    with pytest.raises(UserError, match=r"metrics\.csv cannot be read \(No such file"):
        records.read_curve(tmp_path, kept)
    assert records.read_curve(tmp_path, record()) == {}


def test_what_torch_says_of_a_full_disk_is_told_with_its_remedy():
    found = explain(RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"))
    assert "A checkpoint cannot be written; free some space" in str(found)
    assert explain(RuntimeError("shapes do not fit")) is None
    found = explain(SafetensorError("Error while serializing: I/O error: Read-only file system (os error 30)"))
    assert "A file cannot be written" in str(found)


def test_read_all_finds_every_run_oldest_first(tmp_path):
    records.write(record(finished="2026-03-01", seed=3), tmp_path / "lra" / "x")
    records.write(record(finished="2026-01-01", seed=1), tmp_path / "uea" / "deep" / "y")
    records.write_error("no", "", tmp_path / "failed")
    assert [r.seed for r in records.read_all(tmp_path)] == [1, 3]
    assert records.read_all(tmp_path / "nowhere") == []


def test_read_all_tells_of_broken_files_and_goes_on(tmp_path):
    records.write(record(finished="2026-03-01", seed=3), tmp_path / "lra" / "x")
    records.write(record(), tmp_path / "broken")
    (tmp_path / "broken" / "result.json").write_text('{"seed"')
    told: list[UserError] = []
    assert [r.seed for r in records.read_all(tmp_path, told.append)] == [3]
    assert ["broken/result.json is damaged, or is not a record" in str(error) for error in told] == [True]
    with pytest.raises(UserError, match=r"broken/result\.json is damaged, or is not a record"):
        records.read_all(tmp_path)


def test_history_reads_numbers_and_leaves_gaps_out(tmp_path):
    path = tmp_path / "metrics.csv"
    assert records.read_history(path) == {}
    path.write_text("step,epoch,test/accuracy,train/loss\n3,0,,1.25\n4,1,0.5,nan\n")
    history = records.read_history(path)
    assert history[3] == {"epoch": 0.0, "train/loss": 1.25}
    assert history[4]["test/accuracy"] == 0.5
    assert history[4]["train/loss"] != history[4]["train/loss"]


def test_fingerprints_ignore_the_order_of_keys_and_nothing_else():
    assert records.fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == records.fingerprint({"b": {"d": 3, "c": 2}, "a": 1})
    assert len({records.fingerprint(x) for x in ({"a": 1}, {"a": "1"}, {"a": 1.5}, {"a": None}, {"b": 1})}) == 5
