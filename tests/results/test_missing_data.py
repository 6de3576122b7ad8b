"""Missing data are named before a run starts, in the sentence that the run would end with, and in cells of tables."""

import pytest
from made_results import results_with
from omegaconf import OmegaConf
from runs import finish

from subquad.config.choices import options
from subquad.config.compose import compose_run
from subquad.config.task_metadata import about_task
from subquad.report.terminal import NEEDS_DATA, show_table
from subquad.results import cells
from subquad.results.cells import RunIndex, load_table
from subquad.results.collect import results_of
from subquad.results.missing_data import missing_data
from subquad.results.model import FULL, Scope
from subquad.results.verdict import Verdict, cell_verdict
from subquad.utils.errors import UserError

MADE = {name for name in options("task") if about_task(name).get("download") == "nothing"}
MADE |= {"uea/basic_motions", "tser/covid3month"}
MADE -= {name for name in MADE if name.endswith("/custom")}
"""Drawn by this package, or brought along by scikit-learn and sktime."""
ONE_OF_MANY = [
    *(name for name in options("task") if not name.startswith(("uea/", "tser/", "lra/pathfinder"))),
    "uea/basic_motions", "uea/heartbeat", "tser/covid3month", "tser/benzene_concentration", "lra/pathfinder32",
]  # fmt: skip


@pytest.fixture
def choices(tmp_path):
    return (f"paths.data={tmp_path}",)


def lacking(table, runs):
    results = results_of(table, runs).within(Scope.of(runs.overrides))
    return {place: result.missing_data for place, result in results.items() if result.missing_data}


@pytest.mark.slow
def test_empty_cells_without_data_say_what_they_need(choices, tmp_path, monkeypatch):
    table = load_table("primal_dual/9").select(["BasicMotions", "Cricket", "Epilepsy"], ["Softmax", "Attention-BN"])
    asked = []
    monkeypatch.setattr(cells, "missing_data", lambda data, ask=cells.missing_data: asked.append(data) or ask(data))
    runs = RunIndex([*choices, f"paths.outputs={tmp_path}/outputs"])
    finish(runs.spec(table.cells["Epilepsy", "Softmax"].overrides, 0), 0.9)
    found = lacking(table, runs)
    assert set(found) == {("Cricket", "Softmax"), ("Cricket", "Attention-BN"), ("Epilepsy", "Attention-BN")}
    assert "python scripts/prepare.py task=uea/cricket" in found["Cricket", "Softmax"]
    assert len(asked) == 3  # one for each set of data, not for each attention
    assert lacking(table, RunIndex([*choices, "data=synthetic"])) == {}


def test_a_mean_needs_what_its_parts_need(choices):
    table = load_table("dba/2").select(["DBA"])
    found = lacking(table, RunIndex(choices))
    assert {column for _, column in found} == {"Text", "Retrieval", "Image", "Avg."}  # the others are made here
    assert found["DBA", "Avg."] == found["DBA", "Text"]


def test_a_run_that_starts_from_another_needs_its_data_too(choices):
    table = load_table("linformer/2")
    [cell] = [cell for cell in table if cell.chained][:1]
    sub = table.select([cell.row], [cell.column])
    [reason] = lacking(sub, RunIndex([*choices, f"data.root={choices[0].partition('=')[2]}"])).values()
    assert reason


def test_the_verdict_and_the_mark(choices, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    table = load_table("primal_dual/9").select(["BasicMotions", "Cricket"], ["Softmax"])
    motions, cricket = table.cells["BasicMotions", "Softmax"], table.cells["Cricket", "Softmax"]
    assert cell_verdict(cricket, {}, True, needs_data=True) is Verdict.NEEDS_DATA
    assert cell_verdict(motions, {}, True) is Verdict.NOT_RUN
    assert cell_verdict(motions, {0: 1.0}, False, needs_data=True) is Verdict.OTHER_SCALE
    show_table(results_with(table, missing={cricket.place: "Cricket [is] missing."}), FULL)
    shown = capsys.readouterr().out
    assert f"{NEEDS_DATA} ({cricket.printed.text})" in shown
    assert f"- ({motions.printed.text})" in shown
    assert f"{NEEDS_DATA} needs data that are not on this machine:\n  Cricket [is] missing." in shown
    show_table(results_with(table), FULL)
    assert NEEDS_DATA not in capsys.readouterr().out


def data_settings(words):
    return OmegaConf.to_container(compose_run(words).data, resolve=True)


def words_of(task, data):
    return [f"task={task}", f"paths.data={data}"]


@pytest.mark.parametrize("task", ONE_OF_MANY)
def test_what_is_missing_is_what_the_run_would_say(task, tmp_path):
    from hydra.utils import instantiate

    settings = data_settings(words_of(task, tmp_path))
    said = missing_data(settings)
    assert (said is None) == (task in MADE)
    assert missing_data(settings | {"synthetic": True}) is None
    if said is not None:
        with pytest.raises(UserError) as refusal:
            instantiate(settings, _convert_="all").prepare_data()
        assert str(refusal.value) == said


@pytest.mark.parametrize("task", ["lra/text", "lra/retrieval", "lra/image", "glue/sst2", "vqa_v2", "tser/tecator"])
def test_data_that_are_there_are_not_missing(task, tmp_path):
    from hydra.utils import instantiate

    made = instantiate(data_settings([*words_of(task, tmp_path), "data=synthetic"]), _convert_="all")
    made.prepare_data()
    places = {
        "lra/text": {"source": str(tmp_path / "synthetic/imdb/aclImdb")},
        "lra/retrieval": {"folder": str(tmp_path / "synthetic/aan")},
        "lra/image": {"folder": str(tmp_path / "synthetic/cifar")},
        "glue/sst2": {"folder": str(tmp_path / "synthetic/glue_sst2")},
        "vqa_v2": {"folder": str(tmp_path / "synthetic/vqa_v2")},
        "tser/tecator": {"folder": str(tmp_path / "synthetic/regression/Tecator")},
    }
    assert missing_data(data_settings(words_of(task, tmp_path)) | places[task]) is None


def test_features_of_images_are_part_of_the_data(tmp_path):
    from hydra.utils import instantiate

    instantiate(data_settings([*words_of("vqa_v2", tmp_path), "data=synthetic"]), _convert_="all").prepare_data()
    settings = data_settings([*words_of("vqa_v2", tmp_path), f"data.folder={tmp_path}/synthetic/vqa_v2"])
    assert "holds no features" in missing_data(settings | {"features": str(tmp_path / "none")})


def test_a_wrong_setting_of_data_is_said_as_well(tmp_path):
    said = missing_data(data_settings([*words_of("lra/listops", tmp_path), "data.source=release"]))
    assert said == "data.source=release needs data.release_dir, the folder of basic_{train,val,test}.tsv."


def test_made_up_data_are_not_looked_for(tmp_path):
    assert data_settings([*words_of("imagenet", tmp_path), "data=synthetic"])["synthetic"] is True
    assert compose_run(words_of("imagenet", tmp_path)).data.synthetic is False
