"""Reports of Weights & Biases: what would be sent, and sending it to a server here that answers as theirs does."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import wandb
from made_pages import build
from runs import answer, composed, run_script

from subquad.report import wandb_report
from subquad.results.model import FULL, Scope
from subquad.training.wandb_run import setting_name

TARGET = wandb_report.Target(project="papers", entity="lab")
SHOWN = [wandb_report.Shown(task="digits", monitor="accuracy")]


class Server(ThreadingHTTPServer):
    """Answers the queries of the package; remembers reports by their id, and everything that it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[str] = []
        self.projects: list[str] = []
        self.reports: dict[str, dict[str, Any]] = {}

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        name = query.split("(")[0].split("{")[0].split()[-1]
        self.asked.append(name)
        page = {"pageInfo": {"endCursor": None, "hasNextPage": False}}
        if "upsertView" in query:
            known = self.reports.setdefault(given["id"] or f"report{len(self.reports)}", {})
            known |= given
            place = {"id": "p", "name": given["projectName"], "entityName": given["entityName"]}
            names = {key: given[key] for key in ("name", "displayName", "description", "spec")}
            [key] = [key for key, value in self.reports.items() if value is known]
            return {"upsertView": {"view": {"id": key, "type": "runs", "project": place, **names}, "inserted": True}}
        if "upsertModel" in query:
            self.projects.append(given["input"]["name"])
            return {"upsertModel": {"model": {"id": "p", "name": given["input"]["name"]}, "inserted": True}}
        if "allViews" in query:
            if given["project"] not in self.projects:
                return {"project": None}
            empty = {"user": None, "updatedAt": "2026-01-01T00:00:00", "createdAt": "2026-01-01T00:00:00"}
            nodes = [
                {"node": {**empty, **{k: v[k] for k in ("name", "displayName", "description", "spec")}, "id": i}}
                for i, v in self.reports.items()
            ]
            return {"project": {"allViews": {"edges": [{"cursor": "c", **node} for node in nodes], **page}}}
        if "models(" in query:
            node = {
                "id": "p",
                "entityName": "lab",
                "createdAt": "2026-01-01T00:00:00",
                "isBenchmark": False,
                "user": None,
            }
            edges = [{"cursor": "c", "node": {**node, "name": name}} for name in self.projects]
            return {"models": {"edges": edges, **page}}
        teams = {"edges": [{"node": {"name": "lab"}}]}
        return {"viewer": {"id": "u", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": teams}}


class Answer(BaseHTTPRequestHandler):
    """GraphQL, and nothing else."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/graphql":
            self.send_error(404)
            return
        asked = json.loads(body)
        assert isinstance(self.server, Server)
        content = json.dumps({"data": self.server.answer(asked["query"], asked.get("variables") or {})}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as made:
        thread = Thread(target=made.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{made.server_port}")
        monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
        wandb.teardown()  # a service of another test would go on with other settings
        yield made
        wandb.teardown()
        made.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    return build(tmp_path_factory.getbasetemp() / "made_pages").content.tables[0]


def blocks(report: Any, path: Path) -> list[dict[str, Any]]:
    """What would be sent, as it is kept."""
    wandb_report.write(report, path)
    return json.loads(path.read_text(encoding="utf-8"))["spec"]["blocks"]


def test_a_report_has_the_table_and_how_it_stands(part, tmp_path):
    report = wandb_report.report(part, FULL, [], TARGET, "2026-01-05")
    table, state, heading, lines, _ = blocks(report, tmp_path / "r.json")[1:]
    assert "| Softmax | 89.9 ± 1.1 (90.0±1.0), reproduced |" in table["content"]
    assert "16 cells: 1 reproduced, 1 less, 2 too few seeds, 11 not run, 1 new. Made 2026-01-05" in state["content"]
    assert "python scripts/reproduce.py table=one/1 logger=wandb" in state["content"]
    assert heading["children"][0]["text"] == "Which curve is which cell"
    [run] = part.cells["DBA", "Accuracy"].results[0].runs
    assert f"| DBA | Accuracy | `{setting_name('dba', run.record.fingerprint)}` | 0 |" in lines["content"]
    assert "| 0, 1 |" in lines["content"]
    kept = json.loads((tmp_path / "r.json").read_text())
    assert kept["displayName"] == "Subquad one 1"
    assert kept["project"] == {"name": "papers", "entityName": "lab"}


def test_other_scales_are_reports_of_their_own(part, tmp_path):
    report = wandb_report.report(part, Scope("laptop"), SHOWN, TARGET, "2026-01-05")
    table, state, *_, grid, _ = blocks(report, tmp_path / "r.json")[1:]
    assert report.title == "Subquad one 1 (scale laptop)"
    assert "no reproduction" in table["content"]
    assert "89.9" not in table["content"]
    assert "33.3" in table["content"]
    assert "1 other scale or protocol" in state["content"]
    assert "table=one/1 scale=laptop logger=wandb" in state["content"]
    [runs] = grid["metadata"]["runSets"]
    assert ["scale:laptop"] in [each["value"] for each in runs["filters"]["filters"]]


def test_the_overview_counts_verdicts_and_has_every_filled_table(part, tmp_path):
    counts, heading, table, _ = blocks(wandb_report.overview([part], TARGET, "2026-01-05"), tmp_path / "r.json")[1:]
    assert "| Results of training, of the papers |" in counts["content"]
    assert "1 reproduced" in counts["content"]
    assert heading["children"][0]["text"] == "one/1"
    assert "| Softmax | 89.9 ± 1.1 (90.0±1.0), reproduced |" in table["content"]


def test_curves_are_those_of_the_tagged_runs_by_setting(part, tmp_path):
    heading, task, grid = blocks(wandb_report.report(part, FULL, SHOWN, TARGET, ""), tmp_path / "r.json")[-4:-1]
    assert [each["children"][0]["text"] for each in (heading, task)] == ["Learning curves", "digits"]
    [runs] = grid["metadata"]["runSets"]
    filters = [(each["key"]["name"], each["value"]) for each in runs["filters"]["filters"]]
    tags = ["table:one/1", "digits", "scale:paper", "protocol:paper"]
    assert filters == [*(("tags", [tag]) for tag in tags), ("jobType", "train")]
    assert {each.get("connector", "AND") for each in runs["filters"]["filters"]} == {"AND"}
    assert runs["grouping"] == [{"section": "config", "name": "choice.value.setting"}]
    panels = [panel["config"] for panel in grid["metadata"]["panelBankSectionConfig"]["panels"]]
    shown = [["train/loss"], ["val/loss"], ["val/accuracy"], ["summary_metrics.test/accuracy"]]
    assert [panel["metrics"] for panel in panels] == shown
    assert {panel["xAxis"] for panel in panels[:-1]} == {"trainer/global_step"}


def test_each_task_is_shown_once_with_its_metric(part, data, outputs):
    config = composed(data, outputs, "task=digits")
    assert (config.task.name, config.task.monitor) == ("digits", "val/accuracy")
    assert wandb_report.shown_tasks(part, FULL) == SHOWN


@pytest.mark.slow
def test_a_report_is_made_once_and_then_renewed(part, server):
    report = wandb_report.report(part, FULL, SHOWN, TARGET, "2026-01-05")
    address = wandb_report.send(report)
    assert server.projects == ["papers"]
    [(key, kept)] = server.reports.items()
    assert (kept["entityName"], kept["projectName"], kept["displayName"]) == ("lab", "papers", "Subquad one 1")
    assert address.endswith(f"/lab/papers/reports/Subquad-one-1--{key}")
    assert json.loads(kept["spec"])["blocks"][1]["content"].startswith("**Two rows")
    wandb_report.send(wandb_report.report(part, Scope("laptop"), SHOWN, TARGET, "2026-01-05"))
    assert len(server.reports) == 2
    assert wandb_report.send(wandb_report.report(part, FULL, SHOWN, TARGET, "2026-01-06")) == address
    assert len(server.reports) == 2
    assert "2026-01-06" in server.reports[key]["spec"]


@pytest.mark.slow
def test_no_entity_is_the_account_s_own(part, server):
    report = wandb_report.report(part, FULL, [], wandb_report.Target(project="papers"), "")
    assert "/me/papers/" in wandb_report.send(report)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([], "Which table"), (["table=one/1"], 'There is no table "one/1"'),
        (["table=dba/2", "scale=huge"], "no scale"),
        (["table=all", "scale=laptop"], "leave scale=laptop out"),
        (["table=dba/2", "data=real"], "data= takes synthetic"), (["tabel=dba/2"], "did you mean table?"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(overrides, says):
    done = answer("scripts/dashboard.py", *overrides)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_an_account_it_is_kept_and_said(data, outputs, monkeypatch):
    for name in ("WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(outputs))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    kept = outputs / "tables/dba/2/dashboard-laptop.json"
    overrides = ("table=dba/2", "scale=laptop", "logger.wandb.project=papers", "logger.wandb.entity=lab")
    done = run_script(data, outputs, "scripts/dashboard.py", *overrides, "logger.wandb.offline=false")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [str(kept)]
    assert json.loads(kept.read_text())["project"] == {"name": "papers", "entityName": "lab"}
    assert "wandb login" in done.stderr
    assert "Traceback" not in done.stderr
