"""Command-line arguments of the commands for tables."""

import pytest
from omegaconf import OmegaConf

from subquad.cli.table_arguments import DEFAULTS, check_switch, chosen_seeds, chosen_tables, scope_of
from subquad.results.cells import RunIndex
from subquad.results.model import FULL, Scope
from subquad.utils.errors import UserError

TABLE = "primal_dual/9"


def config(**settings):
    return OmegaConf.create(DEFAULTS | {"table": TABLE} | settings)


@pytest.mark.parametrize("seeds", [["a"], [0.5], [-1], [2**32], [True], [None], "x", -1], ids=repr)
def test_what_is_no_seed_is_refused_before_anything_is_trained(seeds):
    with pytest.raises(UserError, match=r"it lists whole numbers from 0 to 4294967295, as in seeds=\[0,1,2\]"):
        chosen_seeds(config(seeds=seeds), chosen_tables(config()))


@pytest.mark.parametrize(("seeds", "found"), [([0, 0, 2], [0, 2]), (3, [3]), ([], []), (None, None)])
def test_each_seed_counts_once_and_a_single_one_needs_no_brackets(seeds, found):
    assert chosen_seeds(config(seeds=seeds), chosen_tables(config())) == {TABLE: found}


def test_a_table_counts_once_and_a_single_name_needs_no_brackets():
    [table] = chosen_tables(config(table=[TABLE, TABLE], rows="BasicMotions", columns=["Softmax"]))
    assert list(table.cells) == [("BasicMotions", "Softmax")]


def test_no_table_is_refused():
    with pytest.raises(UserError, match="table= names no table; say table="):
        chosen_tables(config(table=None))


@pytest.mark.slow
def test_words_that_make_other_runs_allow_no_verdict(tmp_path, monkeypatch):
    tables = chosen_tables(config(rows=["BasicMotions"]))
    smoke = scope_of(RunIndex(["scale=smoke", "data=synthetic", "trainer=cpu"]), tables)
    assert smoke == Scope("smoke", synthetic=True)
    assert scope_of(RunIndex(["scale=paper", "trainer=cpu", "trainer.devices=1"]), tables) == FULL
    assert scope_of(RunIndex(["trainer.precision=bf16-mixed"]), tables) == FULL
    short = scope_of(RunIndex(["trainer=cpu", "trainer.max_epochs=1"]), tables)
    assert (short.full, short.note) == (False, " (trainer.max_epochs=1: no reproduction)")
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "half.yaml").write_text("defaults: [cpu]\nlimit_train_batches: 1\n")
    monkeypatch.setenv("SUBQUAD_CONFIGS", str(tmp_path))
    assert scope_of(RunIndex(["trainer=half"]), tables).note == " (trainer=half: no reproduction)"


def test_a_switch_is_true_or_false():
    check_switch(OmegaConf.create({"run": False, "measure": None}), "run", "measure")
    with pytest.raises(UserError, match="run is maybe; it takes true or false"):
        check_switch(OmegaConf.create({"run": "maybe"}), "run")


@pytest.mark.parametrize("key", ["rows", "columns"])
def test_an_empty_choice_of_lines_is_not_the_whole_table(key):
    with pytest.raises(UserError, match=rf"{key}=\[\] selects nothing; name some, or leave the setting out for all"):
        chosen_tables(config(**{key: []}))
