"""The tables of the papers: all are there, their numbers agree with one another, and every cell can be run."""

import inspect
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
import torch
from fake_models import check_model
from hydra.utils import get_class
from omegaconf import OmegaConf
from reference import sparse_bn_sh

from subquad.config.choices import CONFIGS, options
from subquad.config.compose import compose_run
from subquad.data.time_series.sets import SETS
from subquad.ops.scaled_heads import DEFAULT_SCALES
from subquad.results import measures
from subquad.results.cells import load_table as load
from subquad.results.mean import misprinted
from subquad.results.model import CellResults, TableResults
from subquad.results.table import Cell, Table

PAPERS = {"dba": 12, "ecoformer": 9, "primal_dual": 14, "blrp": 5, "linformer": 3}
NUMBERED = [f"{paper}/{number + 1}" for paper, count in PAPERS.items() for number in range(count)]
OTHERS = {"blrp/fig4": "Figure 4", "dba/1_training": "Table 1"}
"""Tables beside the numbered ones, and the place in the paper that they belong to."""
NAMES = [*NUMBERED, *OTHERS]
QUOTED = ["mixers/imagenet", "mixers/lra"]
"""Tables of numbers that several papers print."""
OWN = [name for name in options("table") if name not in (*NAMES, *QUOTED)]
"""Tables of the project, in which nothing is printed."""
NUMBERS = {"dba": 806, "ecoformer": 202, "primal_dual": 683, "blrp": 84, "linformer": 128}
"""Printed in all numbered tables of a paper; each spread counts as a number of its own."""
GOLDEN = Path(__file__).parents[1] / "golden" / "printed.json"
OTHER_METRICS = {"ImageClassification": {"top5_accuracy"}, "MaskedLanguageModel": {"accuracy"}} | {
    "VisualQuestionAnswering": {f"accuracy_{kind}" for kind in ("yes_no", "number", "other")}
}


@cache
def load_table(name: str) -> Table:
    return load(name)


def cells(*names: str) -> dict[str, list[Cell]]:
    return {name: list(load_table(name)) for name in names}


def printed(name: str, row: str, column: str) -> str:
    found = load_table(name).cells[row, column].printed
    assert found is not None
    return found.text


def to_run(table: Iterable[Cell]) -> list[Cell]:
    return [cell for cell in table if not (cell.mean or cell.unavailable)]


def test_every_table_of_the_papers_is_there_by_its_number():
    assert {*NAMES, *QUOTED} <= {*options("table")}
    unknown = [name for name in OWN if any(cell.printed for cell in load_table(name))]
    assert unknown == [], "a table with printed numbers belongs to PAPERS, OTHERS or QUOTED"


@pytest.mark.parametrize("name", NAMES)
def test_every_table_opens_with_the_name_of_its_paper_and_number(name):
    paper, number = name.split("/")
    title = {"dba": "DBA", "ecoformer": "EcoFormer", "primal_dual": "Primal-Dual", "blrp": "BLRP"}.get(
        paper, "Linformer"
    )
    place = OTHERS.get(name, f"Table {number}")
    text = (CONFIGS / "table" / f"{name}.yaml").read_text()
    assert text.startswith(f"# {title}, {place}: ")
    assert load_table(name).source.endswith(f", {place}")
    assert "https://arxiv.org/abs/" in load_table(name).source


@pytest.mark.parametrize("name", [*NAMES, *QUOTED])
def test_the_printed_numbers_are_those_that_were_compared_with_the_papers(name):
    """How many there are and their sum; when one is mended, compare the table with the paper and mend this too."""
    numbers = [cell.printed.value for cell in load_table(name) if cell.printed and cell.printed.value is not None]
    spreads = [cell.printed.spread for cell in load_table(name) if cell.printed and cell.printed.spread is not None]
    found = [len(numbers), round(math.fsum(numbers), 6), len(spreads), round(math.fsum(spreads), 6)]
    assert found == json.loads(GOLDEN.read_text())[name]


def test_no_number_of_a_paper_is_left_out():
    counted = dict.fromkeys(PAPERS, 0)
    for name in NUMBERED:
        cells_with_a_number = [
            cell.printed for cell in load_table(name) if cell.printed and cell.printed.value is not None
        ]
        counted[name.partition("/")[0]] += sum(1 + (number.spread is not None) for number in cells_with_a_number)
    assert counted == NUMBERS


@pytest.mark.parametrize("name", NAMES)
def test_a_printed_mean_that_is_none_has_a_note_with_the_right_one(name):
    table = load_table(name)
    for place, (_, mean) in misprinted(table).items():
        assert any(f"{mean:.2f}" in note for note in table.cells[place].notes), (place, mean)


def test_printed_energies_follow_from_the_printed_operations_but_for_the_one_noted():
    """3.7 pJ for a multiplication and 0.9 pJ for an addition, within the rounding of the three numbers."""
    wrong = []
    for name in (f"ecoformer/{number}" for number in (2, 3, 4, 5, 6, 8, 9)):
        table = load_table(name)
        for row in table.rows:
            mul, add, energy = (float(printed(name, row.name, column)) for column in ("Mul", "Add", "Energy"))
            if abs(3.7 * mul + 0.9 * add - energy) > 0.005 * (3.7 + 0.9 + 1):
                wrong.append((name, row.name))
                assert any("54.52" in note for note in table.cells[row.name, "Energy"].notes)
    assert wrong == [("ecoformer/2", "PVTv2-B3 MSA")]


def test_numbers_that_a_paper_prints_twice_agree():
    rows = {row.name for row in load_table("dba/2").rows}
    for row in (row.name for row in load_table("dba/1").rows):
        assert row in rows
        assert printed("dba/1", row, "Avg.") == printed("dba/2", row, "Avg.")
    for row in (row.name for row in load_table("dba/12").rows):
        assert printed("dba/11", row, "Avg.") == printed("dba/12", row, "Avg.")
    for column in (column.name for column in load_table("dba/12").columns):
        for row in ("d_p = 16", "d_in = 24"):
            assert printed("dba/12", row, column) == printed("dba/2", "DBA", column)
    for column in (column.name for column in load_table("dba/11").columns):
        assert printed("dba/11", "d_p = 16", column) == printed("dba/1", "DBA", column)
    for row in (row.name for row in load_table("primal_dual/7").rows):
        assert printed("primal_dual/7", row, "Softmax") == printed("primal_dual/2", row, "Softmax")
    for row in ("Top-1 Acc", "Top-5 Acc"):
        assert printed("primal_dual/6", row, "Softmax") == printed("primal_dual/3", row, "Softmax")
    for attention in ("Attention-BN", "Attention-BN+SH"):
        again = printed("primal_dual/11", f"{attention} (set)", "Retrieval")
        assert again == printed("primal_dual/2", "Retrieval", attention)
    best = {printed("blrp/1", "BLRP", "ListOps"), printed("blrp/fig4", "t_S = 100", "t_L = 100")}
    best |= {printed("blrp/3", "Bidirectional residual - residual", "Accuracy")}
    best |= {printed("blrp/4", "Separate projections", "Accuracy"), printed("blrp/5", "BLRP", "x1")}
    assert best == {"41.43"}
    for column in ("Mul", "Add", "Energy", "Top-1"):
        found = {printed("ecoformer/4", "PVTv2-B0 EcoFormer", column), printed("ecoformer/9", "m = 25", column)}
        found |= {printed(f"ecoformer/{number}", "EcoFormer", column) for number in (5, 6)}
        assert len(found) == 1


def test_a_cell_is_filled_in_one_way():
    for name, table in cells(*NAMES, *OWN, *QUOTED).items():
        for cell in table:
            ways = cell.trained + bool(cell.measure or cell.mean or cell.unavailable)
            assert ways == 1, (name, cell.row, cell.column)


def test_the_default_of_an_ablation_is_the_model_of_the_main_table():
    def folder(name: str, row: str, column: str) -> str:
        return str(compose_run(load_table(name).cells[row, column].overrides).paths.run)

    main = folder("dba/2", "DBA", "Text")
    assert {folder("dba/12", "d_p = 16", "Text"), folder("dba/1", "DBA", "Text")} == {main}
    assert folder("dba/12", "d_p = 8", "Text") != main
    best = folder("blrp/1", "BLRP", "ListOps")
    assert {folder("blrp/3", "Bidirectional residual - residual", "Accuracy")} == {best}
    assert {folder("blrp/fig4", "t_S = 100", "t_L = 100"), folder("blrp/5", "BLRP", "x4")} == {best}
    assert folder("blrp/4", "Siamese projection", "Accuracy") != best


def test_the_combiner_that_ecoformer_quotes_is_the_axial_one():
    assert compose_run(load_table("ecoformer/3").cells["Combiner", "Text"].overrides).attention.factorization == "axial"


def test_every_choice_in_the_words_exists():
    known = {folder.name: options(folder.name) for folder in CONFIGS.iterdir() if folder.is_dir()}
    for name, table in cells(*NAMES, *QUOTED).items():
        for cell in table:
            for word in (*cell.overrides, *cell.init_from):
                group, _, choice = word.partition("=")
                assert group not in known or choice in known[group], (name, word)


def check(cell: Cell) -> None:
    """Its models are built and run, and the task records what it shows, with the better side where it says."""
    config = compose_run(cell.overrides)
    check_model(config, cell.measure.get("spec"), **cell.eval_data)
    if cell.init_from:
        check_model(compose_run(cell.init_from))
    # Nothing is left to resolve: a measure is instantiated, which resolves it.
    assert OmegaConf.to_container(OmegaConf.create(cell.measure), resolve=True) == cell.measure
    if "reference" in cell.measure:
        reference = measures.reference_overrides(cell.overrides, cell.measure["reference"])
        check_model(compose_run(reference), cell.measure.get("spec"))
    if cell.measure:
        return
    module = get_class(config.task.module._target_)
    known = {module.metric_name} | OTHER_METRICS.get(module.__name__, set())  # type: ignore[attr-defined]
    split, _, metric = cell.metric.name.partition("/")
    assert (split in ("test", "val"), metric in known) == (True, True), (cell.metric.name, known)
    assert cell.metric.better == ("lower" if config.task.mode == "min" else "higher")
    assert cell.metric.scale_by == (1 if metric == "rmse" else 100)
    for key in cell.eval_data:
        assert key in config.data


def failures(some: Iterable[Cell]) -> list[str]:
    """What is wrong with cells, all of them."""
    found = []
    for cell in some:
        try:
            check(cell)
        except Exception as error:
            found.append(f"{cell.row} / {cell.column} ({' '.join(cell.overrides)}): {type(error).__name__}: {error}")
    return found


def test_the_last_cell_of_a_table_can_be_run():
    """A first sight of the next tests."""
    assert failures(to_run(load_table("dba/1"))[-1:]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, *OWN, *QUOTED])
def test_three_cells_of_a_table_that_share_no_row_or_column_can_be_run(name):
    seen: set[tuple[int, str]] = set()
    chosen = []
    for cell in reversed(to_run(load_table(name))):
        lines = {(0, cell.row), (1, cell.column)}
        if not lines & seen and len(chosen) < 3:
            chosen.append(cell)
            seen |= lines
    assert failures(chosen) == []


@pytest.mark.release
@pytest.mark.parametrize("name", [*NAMES, *OWN, *QUOTED])
def test_every_cell_of_a_table_can_be_run(name):
    cells = to_run(load_table(name))
    different = {
        (cell.overrides, cell.init_from, cell.metric.name, str(cell.measure), str(cell.eval_data)): cell
        for cell in cells
    }
    assert failures(different.values()) == []


def test_every_sparse_column_leaves_out_a_good_part_of_the_pairs_of_every_data_set():
    """Over all heads, of the pairs of a query and a pooled key, at the length of the data set."""
    table, steps = load_table("primal_dual/10"), {known.task: known.steps for known in SETS.values()}
    lengths = {steps[task] for row in table.rows[:-1] for task in [row.overrides[0].removeprefix("task=")]}
    assert (len(lengths), min(lengths)) == (10, 29)
    for column in table.columns:
        config = compose_run(table.cells["JapaneseVowels", column.name].overrides)
        sizes = {key: config.attention.get(key) for key in ("form", "block", "summary")}
        heads = config.backbone.heads
        scales = DEFAULT_SCALES[heads] if config.attention.get("scales", 1) is None else [1] * heads
        for length in lengths:
            seen = torch.cat([sparse_bn_sh.allowed(length, scale, **sizes).flatten() for scale in scales])
            assert seen.float().mean() < 0.5, (column.name, length)


def settings(name: str) -> list[Cell]:
    return [cell for cell in to_run(load_table(name)) if cell.measure.get("_target_", "").endswith(".setting")]


SETTINGS = (
    [f"dba/{number}" for number in (7, 8, 9, 10)] + [f"primal_dual/{number}" for number in (12, 13, 14)] + ["blrp/2"]
)


def check_settings(some: Iterable[Cell]) -> None:
    for cell in some:
        assert cell.printed is not None
        assert measures.setting(cell.overrides, cell.measure["key"]) == cell.printed.value, (cell.row, cell.column)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_first_and_the_last_setting_are_as_printed(name):
    check_settings(settings(name)[:: max(1, len(settings(name)) - 1)])


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_all_settings_are_as_printed(name):
    check_settings(settings(name))


def test_what_a_measured_cell_names_takes_its_settings():
    for name, table in cells(*NAMES, *OWN, *QUOTED).items():
        for cell in table:
            if cell.measure and not (cell.mean or cell.unavailable):
                module, _, function = cell.measure["_target_"].rpartition(".")
                assert module == measures.__name__
                given = {key: value for key, value in cell.measure.items() if key != "_target_"}
                try:
                    inspect.signature(getattr(measures, function)).bind(cell.overrides, **given)
                except TypeError as error:
                    raise AssertionError(f"{name}, {cell.row} / {cell.column}: {error}") from error


def test_each_measured_quantity_is_measured_alike_along_a_column():
    """A column compares its rows: what is measured differs in nothing but what the row or the cell must add."""
    for name, table in cells(*NAMES, *OWN, *QUOTED).items():
        targets = defaultdict(set)
        for cell in to_run(table):
            if cell.measure:
                targets[cell.column].add(cell.measure["_target_"])
        assert all(len(found) == 1 for found in targets.values()), name


def test_a_model_compared_with_itself_is_no_experiment():
    def kind(name: str, row: str, column: str) -> str:
        part = CellResults(cell=load(name).cells[row, column], anchor="", command="", results=())
        return TableResults(table=load(name), command="", cells={}).kind(part)

    assert kind("dba/1", "Vanilla Transformer", "speed 1k") == "stated"
    assert kind("dba/1", "Linformer", "speed 1k") == "measured"
    assert kind("dba/5", "Text", "S4 memory") == "stated"
    assert kind("dba/5", "Text", "S4+DBA memory") == "measured"
    assert kind("arena", "softmax", "speed 4k") == "measured"
    assert kind("arena", "no attention", "speed 4k") == "measured"
