"""Rows of the user in a table of attentions: where they are kept, what their cells train, and that pages show them."""

import sys
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from runs import FACTS

from subquad import records
from subquad.cli import plan, reproduce
from subquad.cli.table_arguments import DEFAULTS, chosen_tables, table_of_rates
from subquad.results.added_rows import AddedRow, best_rates, keep, path_of, read, with_rows
from subquad.results.cells import RunIndex, load_table
from subquad.results.collect import gather
from subquad.results.model import FULL
from subquad.utils.errors import UserError

COPYING = "columns=[copying]"
OWN = ("attention=dba", "attention.d_p=8")
CLASS = "attention=subquad.attention.softmax:Softmax"


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path / "outputs"))
    monkeypatch.setenv("SUBQUAD_DATA", str(tmp_path / "data"))
    return tmp_path / "outputs"


def chosen(attention, table="arena", rows=("mine",), columns=("copying", "speed 4k")):
    given = {"table": table, "rows": list(rows), "columns": list(columns) or None, "attention": list(attention)}
    return OmegaConf.create(DEFAULTS | given)


def write(run, accuracy):
    """Leaves what a finished run of an arena's cell leaves, with the validation accuracy of its rate."""
    fingerprint, _, seed = run.folder.name.partition("-s")
    known = {
        "fingerprint": fingerprint, "seed": int(seed), "scale": "paper", "task": run.overrides[0].partition("=")[2],
        "attention": run.folder.parent.name, "metrics": {"test/accuracy": accuracy, "val/accuracy": accuracy},
    }  # fmt: skip
    records.write_json(run.folder / records.RESULT, FACTS | known)


def trained(jobs, *_):
    """Finishes runs without training them: 0.003 is the best rate."""
    for job in jobs:
        write(job, 0.9 if "optimizer.lr=3.0e-3" in job.overrides else 0.5)
    return False


def enter(monkeypatch, *arguments, status=0):
    """What `reproduce.py` trains, at the moment."""
    jobs = []
    monkeypatch.setattr("subquad.cli.reproduce.train_all", lambda found, *more: jobs.append(found) or trained(found))
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "table=arena", "measure=false", *arguments])
    assert reproduce.main() == status
    return jobs


@pytest.mark.slow
@pytest.mark.parametrize("attention", [OWN, (CLASS,)])
def test_a_row_enters_with_the_best_rate_and_is_among_the_others(outputs, monkeypatch, attention):
    rates, runs = enter(monkeypatch, "rows=[mine]", COPYING, *attention)
    assert {job.overrides[0] for job in rates} == {"task=arena/copying"}
    assert {(job.overrides[2], job.overrides[-1]) for job in rates} == {
        (f"optimizer.lr={rate}", f"seed={seed}")
        for rate in ("3.0e-4", "1.0e-3", "3.0e-3", "1.0e-2", "3.0e-2") for seed in (100, 101, 102)
    }  # fmt: skip
    assert [job.overrides[-2:] for job in runs] == [("optimizer.lr=3.0e-3", f"seed={seed}") for seed in range(6)]
    final = ("arena/copying",)
    assert read(outputs, "arena") == {"mine": AddedRow(attention, {"arena/copying": "3.0e-3"}, final)}
    assert enter(monkeypatch, "rows=[mine]", COPYING, *attention) == []  # the same command again
    assert enter(monkeypatch, "rows=[mine]", COPYING) == []  # or only the name, which is enough for more cells too:
    more = enter(monkeypatch, "rows=[mine]", "columns=[compression]")
    assert [len(jobs) for jobs in more] == [15, 6]
    assert read(outputs, "arena")["mine"].rates == {"arena/copying": "3.0e-3", "arena/compression": "3.0e-3"}
    arena, rates = gather(["arena", "arena_rates"], check=False).tables
    assert rates.cells["mine", "copying 3.0e-3"].within(FULL).values == {100: 90.0, 101: 90.0, 102: 90.0}
    assert (arena.table.rows[0].name, arena.table.added) == ("mine", ("mine",))
    mine = arena.cells["mine", "copying"].within(FULL)
    assert mine.values == dict.fromkeys(range(6), 90.0)


@pytest.mark.slow
def test_a_task_whose_data_are_missing_is_left_out(outputs, monkeypatch, capsys):
    rates, runs = enter(monkeypatch, "rows=[mine]", "columns=[copying,Handwriting]", *OWN, status=1)
    assert {job.overrides[0] for job in (*rates, *runs)} == {"task=arena/copying"}
    assert (len(rates), len(runs)) == (15, 6)
    assert "The data of 15 runs are missing" in capsys.readouterr().out


@pytest.mark.slow
def test_a_smaller_scale_shortens_every_run_and_searches_each_task_once(outputs, monkeypatch):
    small = ("scale=smoke", "rows=[mine]")
    for columns in ("columns=[copying]", "columns=[compression]"):
        rates, runs = enter(monkeypatch, *small, columns, *OWN)
        assert not any(text.startswith("limits.") for job in (*rates, *runs) for text in job.overrides)
        assert all("optimizer.lr=3.0e-3" in job.overrides for job in runs)
    assert read(outputs, "arena")["mine"].rates == {"arena/copying": "3.0e-3", "arena/compression": "3.0e-3"}


def test_rates_of_full_scale_stay_and_others_are_replaced():
    row = AddedRow(OWN).chosen({"arena/recall": "1.0e-2"}, full=False)
    row = row.chosen({"arena/recall": "1.0e-3", "arena/copying": "3.0e-3"}, full=False)
    assert row.rates == {"arena/recall": "1.0e-3", "arena/copying": "3.0e-3"}
    row = row.chosen({"arena/recall": "3.0e-4"}, full=True).chosen({"arena/recall": "3.0e-2"}, full=False)
    assert row == AddedRow(OWN, {"arena/recall": "3.0e-4", "arena/copying": "3.0e-3"}, ("arena/recall",))


@pytest.mark.slow
def test_the_plan_counts_the_search_of_the_rates(outputs, monkeypatch, capsys, real_store):
    monkeypatch.setattr("subquad.results.store.FOLDER", real_store)
    monkeypatch.setattr(sys, "argv", ["plan.py", "table=arena", "rows=[mine]", "columns=[ListOps]", *OWN])
    plan.main()
    shown = capsys.readouterr().out
    count = 5 * 3 + 6  # the rates with their seeds and, with the best one, the seeds of the row
    assert f"{count} runs, 0 finished" in shown
    assert f"{count} runs by other attentions" in shown
    assert not path_of(outputs, "arena").exists()


def test_the_seeds_of_a_search_are_others_than_those_of_the_runs():
    for name, seeds in (("arena_rates", (100, 101, 102)), ("arena", range(6))):
        table = load_table(name).select(["softmax"])
        assert {spec.overrides[-1] for spec in RunIndex().specs(table, None)} == {f"seed={seed}" for seed in seeds}


@pytest.mark.parametrize(("better", "rate"), [("higher", "1.0e-2"), ("lower", "1.0e-3")])
def test_the_best_rate_is_that_of_the_better_score(better, rate):
    def cell(mean):
        result = SimpleNamespace(summary=SimpleNamespace(seeds=3, mean=mean))
        declared = SimpleNamespace(seeds=3, metric=SimpleNamespace(better=better))
        return SimpleNamespace(cell=declared, fullest=lambda scope: result)

    found = SimpleNamespace(cells={("mine", "series 1.0e-3"): cell(3.0), ("mine", "series 1.0e-2"): cell(9.0)})
    assert best_rates(found) == {("mine", "series"): rate}


def test_rates_are_those_of_the_tasks_that_are_chosen(outputs):
    config = chosen(OWN, columns=["recall 8", "recall 64", "speed 4k"])
    [table] = chosen_tables(config)
    rates = table_of_rates(table)
    assert [column.name for column in rates.columns] == [
        f"recall {rate}" for rate in ("3.0e-4", "1.0e-3", "3.0e-3", "1.0e-2", "3.0e-2")
    ]
    [measured] = chosen_tables(chosen(OWN, columns=["speed 4k"]))
    assert table_of_rates(measured) is None
    assert table_of_rates(load_table("arena")) is None


def test_a_row_of_the_rates_table_is_one_of_both_and_keeps_its_rates(tmp_path):
    keep(tmp_path, "arena", "mine", AddedRow(OWN, {"arena/recall": "1.0e-2"}))
    keep(tmp_path, "arena_rates", "mine", AddedRow(OWN))
    assert read(tmp_path, "arena") == {"mine": AddedRow(OWN, {"arena/recall": "1.0e-2"})}
    assert read(tmp_path, "arena_rates") == {"mine": AddedRow(OWN)}


def test_only_trained_cells_have_a_rate():
    grown = with_rows(load_table("arena"), {"mine": AddedRow(OWN, {"arena/recall": "1.0e-2"})})
    lr = {column for (row, column), c in grown.cells.items() if row == "mine" and "optimizer.lr=1.0e-2" in c.overrides}
    assert lr == {"recall 8", "recall 16", "recall 64"}  # not "passed on", which is measured on the same task


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (chosen(OWN, rows=["mine", "yours"]), "attention= adds one row to one table"),
        (chosen(OWN, table=["arena", "mixers/lra"]), "attention= adds one row to one table"),
        (chosen(OWN[1:]), "attention= adds one row to one table"),
        (chosen(OWN, rows=["softmax"]), 'Table arena has a row "softmax"'),
        (chosen(OWN, rows=["a/b"]), 'cannot be added to table arena as "a/b"'),
        (chosen(OWN, table="dba/2", columns=()), "No row can be added to table dba/2"),
        (chosen(["attention=no_module:Mine"]), "attention=no_module:Mine: No module named 'no_module'"),
        (chosen(["attention=fractions:Fraction"]), "attention=fractions:Fraction is no attention; derive it from"),
        (chosen(["attention=subquad:StatelessAttention"]), "is no attention; .* with patterns and attend"),
        (chosen([CLASS, "attention.q=3"]), "attention of Softmax has no key q"),
        (chosen([], rows=["kept"], columns=["digits"]), "no column digits; .* its rows are .*, Mega[.]$"),
        (chosen([], rows=["Luna"]), "table arena has no row Luna; .* With attention=, a new row enters."),
        (chosen(["attention=luna"], rows=["kept"]), "Row kept of table arena is attention=dba"),
    ],
)
def test_what_cannot_be_added_is_refused(outputs, config, sentence):
    keep(outputs, "arena", "kept", AddedRow(OWN))
    with pytest.raises(UserError, match=sentence):
        chosen_tables(config)


@pytest.mark.parametrize(
    ("name", "override", "why"),
    [
        ("softmax", "attention=dba", 'row "softmax": table arena has one of that name; rename or remove it here'),
        ("gone", "attention=gone_by_now", 'row "gone": There is no attention "gone_by_now"'),
        ("away", "attention=gone_by_now:Mine", 'row "away": attention=gone_by_now:Mine: No module named'),
    ],
)
def test_a_kept_row_that_cannot_be_had_leaves_the_others_alone(outputs, monkeypatch, capsys, name, override, why):
    keep(outputs, "arena", name, AddedRow((override,)))
    keep(outputs, "arena", "empty", AddedRow(()))
    keep(outputs, "arena", "mine", AddedRow(OWN))
    [table] = chosen_tables(chosen([], rows=["mine", "softmax"]))
    assert [row.overrides for row in table.rows] == [OWN, ("attention=softmax",)]
    assert f"arena.json: {why}" in capsys.readouterr().err
    assert enter(monkeypatch, "rows=[mine]", COPYING, "run=false") == []
    content = gather(["arena"], check=False)
    assert content.tables[0].table.added == ("mine",)
    assert why in content.broken[0].message
    assert 'row "empty": attention= chooses nothing' in content.broken[1].message
