"""Weights & Biases through the real package, offline: what its files on disk say of runs and tables."""

import dataclasses
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from made_results import results_with
from omegaconf import OmegaConf
from runs import composed, crash, run_script, trained
from wandb.proto import wandb_internal_pb2

from subquad.config.fingerprint import identity
from subquad.records import fingerprint, read_curve
from subquad.report.wandb_table import (
    COLUMNS,
    is_chosen,
    labelled,
    labels,
    log_table,
    table_rows,
)
from subquad.results.cells import RunSpec, load_table
from subquad.results.model import FULL, Scope
from subquad.training.wandb_run import _check_answer, close_failed, log_finished, setting_name
from subquad.utils.errors import UserError, explain

LINE = ("task=digits", "recipe=small_vit", "scale=smoke", "trainer=cpu", "logger=wandb")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "false")
    monkeypatch.delenv("WANDB_SILENT")  # the commands set it; restored after the test
    yield
    close_failed()


BLOCK, HEADER = 32768, 7


def told(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log, in blocks, where a record may be cut into a first, middle, last."""
    content, place, parts = path.read_bytes(), HEADER, b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + HEADER])
        parts += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # whole, last
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def ended(path: Path) -> list[Any]:
    """The records of a run that has ended: its service writes the last of them shortly after that."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        records = list(told(path))
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        time.sleep(0.05)
    raise TimeoutError(path)


def logged(folder: Path) -> list[tuple[dict[str, Any], dict[str, Any], int | None]]:
    """Of each run that is kept below a folder: what it is, its last summary by key, and its exit code."""
    found = []
    for path in sorted(folder.rglob("run-*.wandb"), key=lambda path: path.parent.name):
        run: dict[str, Any] = {}
        config: dict[str, str] = {}
        summary: dict[str, Any] = {}
        code = None
        for record in ended(path):
            match record.WhichOneof("record_type"):
                case "run":
                    this = record.run
                    config |= {item.key: item.value_json for item in this.config.update}
                    run = {
                        "id": this.run_id, "group": this.run_group, "job_type": this.job_type, "tags": set(this.tags),
                        "project": this.project,
                    }  # fmt: skip
                case "config":
                    config |= {item.key: item.value_json for item in record.config.update}
                case "summary":
                    for item in record.summary.update:
                        summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
                case "exit":
                    code = record.exit.exit_code
        found.append((run | {"config": config}, summary, code))
    return found


def test_labels_are_no_part_of_what_a_run_is(data, outputs):
    plain = composed(data, outputs, *LINE)
    labelled = composed(data, outputs, *LINE, *labels("dba/2"))
    assert fingerprint(identity(plain)) == fingerprint(identity(labelled))
    assert labelled.logger.wandb.group == "dba/2"
    assert plain.logger.wandb.group == "digits"
    experiment = composed(data, outputs, "experiment=dba/lra", "logger=wandb")
    assert experiment.logger.wandb.group == "dba/lra"
    assert OmegaConf.to_container(labelled.tags) == ["table:dba/2", "paper:dba"]
    both = composed(data, outputs, *LINE, *labels("dba/2", "dba/3", "blrp/1"))
    assert both.logger.wandb.group == "several"
    assert OmegaConf.to_container(both.tags) == [
        "table:dba/2",
        "table:dba/3",
        "table:blrp/1",
        "paper:dba",
        "paper:blrp",
    ]
    assert is_chosen(["scale=laptop", "logger=wandb"])
    assert not is_chosen(["logger=csv", "logger.wandb.offline=false"])


def test_runs_have_the_tags_of_all_tables_that_need_them():
    start, own, shared = (RunSpec((f"seed={i}",), Path(f"run-s{i}")) for i in range(3))
    chained = dataclasses.replace(own, init_from=start)
    jobs = labelled([start, chained, shared], {"dba/2": [shared], "dba/3": [shared, chained]})
    assert [job.overrides[1:] for job in jobs] == [labels("dba/3"), labels("dba/3"), labels("dba/2", "dba/3")]
    assert jobs[1].init_from == start


@pytest.mark.slow
def test_a_run_of_a_table_is_grouped_and_tagged(data, outputs, capfd):
    record = trained(composed(data, outputs, *LINE, "attention=dba", *labels("dba/2")))
    said = [line for line in "".join(capfd.readouterr()).splitlines() if "wandb" in line or "W&B" in line]
    assert [line.partition(" sync ")[0] for line in said] == ["W&B: wandb"]
    [(run, summary, code)] = logged(outputs)
    assert run["id"] == f"{record.fingerprint}-s0"
    assert (run["project"], run["group"], run["job_type"]) == ("subquad", "dba/2", "train")
    assert {"dba", "digits", "recipe:small_vit", "protocol:paper", "scale:smoke"} <= run["tags"]
    assert {"table:dba/2", "paper:dba"} <= run["tags"]
    assert summary["test/accuracy"] == record.metrics["test/accuracy"]
    choice = {"attention": "dba", "setting": setting_name("dba", record.fingerprint)}
    assert json.loads(run["config"]["choice"]) == choice
    assert code == 0


@pytest.mark.slow
def test_a_run_that_finished_without_it_is_logged_from_its_record_once(data, outputs):
    record = trained(composed(data, outputs, *LINE[:-1], "attention=dba"))
    config = composed(data, outputs, *LINE, "attention=dba", *labels("dba/2"))
    folder = Path(config.paths.run)
    log_finished(config, record, folder)
    log_finished(config, record, folder)
    [(run, summary, code)] = logged(outputs)
    assert (run["id"], run["group"], code) == (f"{record.fingerprint}-s0", "dba/2", 0)
    assert summary["test/accuracy"] == record.metrics["test/accuracy"]
    assert json.loads(run["config"]["choice"])["setting"] == setting_name("dba", record.fingerprint)
    [path] = folder.rglob("*.wandb")
    items = [item for r in told(path) if r.WhichOneof("record_type") == "history" for item in r.history.item]
    losses = [json.loads(item.value_json) for item in items if "val/loss" in (item.key, *item.nested_key)]
    assert losses == [row["val/loss"] for row in read_curve(folder, record).values() if "val/loss" in row]


@pytest.mark.slow
def test_a_failed_run_is_closed_and_the_next_opens_its_own(data, outputs):
    with pytest.raises(RuntimeError, match="pulled the plug"), crash(0):
        trained(composed(data, outputs, *LINE, "seed=1"))
    record = trained(composed(data, outputs, *LINE, "seed=2"))
    runs = {run["id"]: code for run, _, code in logged(outputs)}
    assert runs == {f"{record.fingerprint}-s1": 1, f"{record.fingerprint}-s2": 0}


def small_table() -> Any:
    return load_table("primal_dual/9").select(["BasicMotions", "Epilepsy"], ["Softmax", "Attention-BN"])


def test_a_table_is_a_run_that_a_second_call_updates(tmp_path):
    table = small_table()
    place = ("BasicMotions", "Softmax")
    choices = [f"paths.outputs={tmp_path}", "logger=wandb"]
    for values in ({}, {place: {0: 97.5, 1: 100.0, 2: 99.0, 3: 98.0, 4: 99.0}}):
        log_table(results_with(table, values), FULL, choices)
    laptop = Scope("laptop")
    lacking = results_with(table, scope=laptop, missing={place: "BasicMotions is missing."})
    log_table(lacking, laptop, [*choices, "scale=laptop"])
    first, second, other = sorted(
        (run for run, _, _ in logged(tmp_path)), key=lambda run: "scale:laptop" in run["tags"]
    )
    assert first["id"] == second["id"] != other["id"]
    assert (first["group"], first["job_type"]) == ("primal_dual/9", "table")
    assert {"paper:primal_dual", "table:primal_dual/9", "protocol:paper", "scale:paper"} <= first["tags"]
    summaries = sorted((summary for run, summary, _ in logged(tmp_path) if run["id"] == first["id"]), key=len)
    assert summaries[0]["cells/not run"] == 4
    assert summaries[1]["cells/not run"] == 3
    [lacks] = [summary for run, summary, _ in logged(tmp_path) if run["id"] == other["id"]]
    assert (lacks["cells/needs data"], lacks["cells/not run"]) == (1, 3)
    tables = [json.loads(path.read_text()) for path in tmp_path.rglob("*.table.json")]
    assert len(tables) == 3
    assert all(tuple(shown["columns"]) == COLUMNS for shown in tables)
    rows = [dict(zip(COLUMNS, shown["data"][0], strict=True)) for shown in tables]
    [filled] = [row for row in rows if row["mean"] is not None]
    assert (filled["row"], filled["column"]) == place
    assert (filled["mean"], filled["seeds"], filled["verdict"]) == (98.7, 5, "reproduced")
    assert filled["std"] == pytest.approx(0.9747, abs=1e-4)
    assert (filled["printed"], filled["printed value"], filled["printed spread"]) == ("98.75±1.25", 98.75, 1.25)


def test_every_printed_cell_is_a_row_and_hidden_ones_are_not():
    table = load_table("dba/1")
    rows = table_rows(results_with(table), FULL)
    assert len(rows) == len(table.rows) * len(table.columns) < len(table.cells)
    assert {len(row) for row in rows} == {len(COLUMNS)}
    assert all(row[COLUMNS.index("mean")] is None for row in rows)


@pytest.mark.slow
def test_one_command_logs_runs_and_table(data, outputs):
    words = ("table=dba/2", "rows=[DBA]", "columns=[Text]", "seeds=[0,1]", "scale=smoke", "data=synthetic")
    done = run_script(data, outputs, "scripts/reproduce.py", *words, "logger=wandb")
    assert done.returncode == 0, done.stderr
    runs = [run for run, _, _ in logged(outputs)]
    assert [run["job_type"] for run in runs].count("train") == 2
    assert {run["group"] for run in runs} == {"dba/2"}
    [shown] = outputs.rglob("*.table.json")
    assert json.loads(shown.read_text())["data"][0][:2] == ["DBA", "Text"]


@pytest.mark.slow
def test_a_sweep_has_a_run_for_each_job(data, outputs):
    done = run_script(data, outputs, "train.py", "-m", *LINE, "attention=dba,softmax", "seed=0,1")
    assert done.returncode == 0, done.stderr
    runs = [run for run, _, _ in logged(outputs)]
    assert len({run["id"] for run in runs}) == 4
    assert {run["group"] for run in runs} == {"digits"}


def test_a_run_that_is_sent_while_nothing_answers_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(UserError, match=f"W&B does not answer .{address}, ConnectionError.; check the network"):
        _check_answer(address)


def test_a_run_that_nobody_is_logged_in_for_is_one_sentence(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    wandb.teardown()  # a service of another test would go on with other settings
    with pytest.raises(wandb.errors.UsageError) as refused:
        wandb.init(mode="online", dir=tmp_path)
    wandb.teardown()
    assert str(explain(refused.value)).startswith("W&B refuses the run (No API key configured.")
