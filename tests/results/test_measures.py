"""What measured cells name: constants, the accelerator's model, gains over softmax; and cells without a value."""

import io

import pytest
import torch
from hydra.utils import instantiate
from made_results import results_with
from rich.console import Console

from subquad.measure import memory, timing
from subquad.measure.analysis.bitfusion import attention_layer
from subquad.measure.inputs import random_inputs
from subquad.measure.memory import LiveTensors
from subquad.measure.shapes import peak_of_shapes
from subquad.measure.timing import Timing
from subquad.report import terminal
from subquad.results import measurement_cache, measures
from subquad.results.cells import RunIndex, load_table
from subquad.results.collect import results_of
from subquad.results.measurement_cache import measure_cells
from subquad.results.model import FULL
from subquad.results.table import load
from subquad.results.verdict import Verdict, cell_verdict
from subquad.specs import DataSpec, ImageSpec, TextSpec
from subquad.utils.errors import UserError

TINY = ["task=mlm/text", "recipe.sizes.mlm.layers=2", "recipe.sizes.mlm.dim=16", "recipe.sizes.mlm.heads=2",
        "recipe.sizes.mlm.ffn=32"]  # fmt: skip
OURS = [*TINY, "attention=linformer_layer", "attention.k=4"]


def test_the_constants_are_the_printed_ones():
    for cell in load_table("ecoformer/1"):
        settings = {key: value for key, value in cell.measure.items() if key != "_target_"}
        assert measures.energy_cost([], **settings) == cell.printed.value, (cell.row, cell.column)


@pytest.mark.parametrize(("row", "energy"), [("Transformer", 0), ("EcoFormer", 0.025)])
def test_the_layer_on_the_accelerator_is_that_of_the_cells_attention(row, energy):
    latency, nanojoules = (load_table("ecoformer/7").cells[row, column] for column in ("Latency", "Energy"))
    assert measures.bitfusion(latency.overrides, "latency", "published") == pytest.approx(
        latency.printed.value, abs=5e-5
    )
    found = measures.bitfusion(nanojoules.overrides, "energy", "published")
    assert found == pytest.approx(nanojoules.printed.value, rel=energy or 1e-6)


@pytest.mark.parametrize("column", ["Mul", "Add", "Energy"])
def test_linformers_k_in_table_6_of_ecoformer_gives_the_printed_operations(column):
    cell = load_table("ecoformer/6").cells["Linformer", column]
    value = instantiate(cell.measure, list(cell.overrides), _convert_="all")
    assert value == pytest.approx(cell.printed.value, abs=cell.printed.rounding)


@pytest.mark.parametrize("column", ["CIFAR-10 64", "CIFAR-100 128"])
def test_the_two_baselines_of_blrp_on_images_are_the_same_vit_at_paper_scale(column):
    cells = load_table("blrp/1").cells
    spec = ImageSpec(side=cells["BLRP", column].eval_data.get("size", 64), channels=3, classes=10)
    words = [*cells["Transformer-LS", column].overrides, f"data.size={spec.side}"]
    softmax = [*cells["Vision Transformer", column].overrides, f"data.size={spec.side}"]
    summaries = 12 * (192 * 3 * 32 + 4 * 192)  # W_P of rank 32 in each head; the two norms
    assert measures.parameters(words, spec) - measures.parameters(softmax, spec) == summaries


def test_the_whole_sequence_is_no_sixteenth():
    words = ["task=imagenet", "backbone=pvt_v2", "attention=ecoformer"]
    whole = attention_layer("ecoformer", rows=3136)
    assert measures.bitfusion(words, "latency", "whole") == whole.milliseconds
    assert measures.bitfusion(words, "energy", "whole") == whole.nanojoules
    with pytest.raises(UserError, match="no layout"):
        measures.bitfusion([*words[:2], "attention=reformer"], "energy")


def encoder(words, length):
    torch.manual_seed(0)
    spec = TextSpec(max_len=length, vocab=50265, tokenizer="0")
    return measures._network(words, spec).encoder.eval(), random_inputs(spec)


@pytest.mark.parametrize("attention", ["softmax_explicit", "linformer_layer"])
@pytest.mark.slow
def test_the_peak_of_shapes_is_that_of_a_computation(attention):
    network, inputs = encoder([*TINY, f"attention={attention}"], 300)
    with torch.no_grad(), LiveTensors() as live:
        network(*inputs)
    assert peak_of_shapes(network, inputs) == live.peak > 0


@pytest.mark.slow
def test_the_gain_in_memory_is_softmax_over_ours():
    softmax, ours = (
        peak_of_shapes(*encoder(words, 64)) for words in ([*TINY, "attention=softmax_explicit"], OURS)
    )  # fmt: skip
    assert measures.inference_gain(OURS, "memory", 64) == softmax / ours > 1


@pytest.mark.slow
def test_the_gain_in_time_is_softmax_over_ours(monkeypatch):
    def interleave(sides, rounds, warmup):
        for run in sides.values():
            run()
        return {"ours": Timing((1.0,) * rounds), "softmax": Timing((3.0,) * rounds)}

    monkeypatch.setattr(timing, "interleave", interleave)
    assert measures.inference_gain(OURS, "time", 32) == 3
    softmax = peak_of_shapes(*encoder([*TINY, "attention=softmax_explicit"], 32))
    monkeypatch.setattr(memory, "total_memory", lambda device: 2 * softmax - 2)  # one head at a time fits
    assert measures.inference_gain(OURS, "time", 32) == 3
    monkeypatch.setattr(memory, "total_memory", lambda device: 1000)
    with pytest.raises(UserError, match="Softmax attention over 32 tokens holds 0 GiB"):
        measures.inference_gain(OURS, "time", 32)


TABLE = """
title: Three rows
source: nowhere
overrides: [task=digits, recipe=small_vit]
metric: {better: equal}
columns:
  Value: {}
rows:
  Width: {measure: {_target_: subquad.results.measures.setting, key: backbone.dim}}
  Choice: {measure: {_target_: subquad.results.measures.setting, key: task.name}}
  None: {measure: {_target_: subquad.results.measures.setting, key: backbone.depth_of_thought}, note: Odd.}
  Heads: {measure: {_target_: subquad.results.measures.head_distance, statistic: mean, seed: 0}}
  Never: {unavailable: Nobody can.}
printed: {Width: "1", Choice: a_word, None: "1", Heads: "1", Never: "1"}
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.yaml"
    path.write_text(TABLE)
    return load(path, "three")


def test_what_cannot_be_measured_is_a_dash_with_the_reason(table, tmp_path, monkeypatch):
    runs = RunIndex([f"paths.outputs={tmp_path}/outputs", "scale=smoke"])
    measured, failures = measure_cells(table, runs)
    width = measured["Width", "Value"].value
    assert {place: found.value for place, found in measured.items()} == {
        ("Width", "Value"): width, ("Choice", "Value"): "digits",
    }  # fmt: skip
    assert failures.keys() == {("None", "Value"), ("Heads", "Value")}
    no_key, no_run = failures["None", "Value"], failures["Heads", "Value"]
    assert "backbone.depth_of_thought" in no_key
    assert "train it first: python train.py task=digits recipe=small_vit" in no_run
    assert "scale=smoke seed=0" in no_run

    monkeypatch.setattr(measurement_cache, "measure", None)  # would fail if called
    assert measure_cells(table, runs, run=False) == (measured, {})

    console = Console(width=100, highlight=False, record=True, file=io.StringIO())
    monkeypatch.setattr(terminal, "Console", lambda **_: console)
    terminal.show_table(results_of(table, runs, FULL, measured=measured, failures=failures), FULL)
    text = console.export_text()
    for line in (f"{width:.0f} (1)", "digits (a word)", "- (1)", "None: Odd.", "Never: Nobody can."):
        assert line in text
    assert f"None / Value: {no_key}" in text
    assert no_run in text


@pytest.mark.parametrize(
    ("measure", "reason"),
    [
        ("_target_: subquad.results.measures.setings, key: a", "subquad.results.measures has no setings"),
        ("_target_: nowhere.setting, key: a", "No module named 'nowhere'"),
        ("_target_: subquad.results.measures.setting, kee: a", "has missing a required argument: 'key'"),
        ("_target_: subquad.results.measures.setting, key: a, b: 1", "has got an unexpected keyword argument 'b'"),
    ],
)
def test_a_mistyped_measure_is_a_dash_with_the_reason(tmp_path, measure, reason):
    (tmp_path / "table.yaml").write_text(
        TABLE.replace("_target_: subquad.results.measures.setting, key: task.name", measure)
    )
    runs = RunIndex([f"paths.outputs={tmp_path}/outputs"])
    one = load(tmp_path / "table.yaml", "three").select(rows=["Choice", "Width"])
    measured, failures = measure_cells(one, runs)
    assert [*measured] == [("Width", "Value")]
    assert reason in failures["Choice", "Value"]


def test_measured_anew_where_asked(table, tmp_path, monkeypatch):
    runs = RunIndex([f"paths.outputs={tmp_path}/outputs"])
    one = table.select(rows=["Width"])
    measure_cells(one, runs)
    monkeypatch.setattr(measures, "setting", lambda overrides, key: 7.0)
    assert measure_cells(one, runs)[0]["Width", "Value"].value != 7
    assert measure_cells(one, runs, again=True)[0]["Width", "Value"].value == 7


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_halved_and_the_record_says_so(table, tmp_path, monkeypatch):
    asked = []

    def program(words, spec, mode, batch):
        asked.append(batch)
        return lambda: torch.ones(batch, 1000 if words[-1] == "attention=softmax" else 10)

    monkeypatch.setattr(measures, "_program", program)
    case = (["attention=linear"], None, ["attention=softmax"], "training")
    assert measures.relative_memory(*case, batch=8) == 0.01
    monkeypatch.setattr(memory, "total_memory", lambda device: 4 * 5 * 4000)  # five rows of softmax in a quarter
    found = measures.relative_memory(*case, batch=8)
    assert asked[-2:] == [4, 4]
    assert found == measures.Noted(0.01, "in batches of 4, as 8 rows take more than a quarter of the memory")
    assert measures.relative_memory(*case, batch=4) == measures.relative_memory(*case) == 0.01
    assert measures.relative_speed(*case, batch=8, rounds=1).note == found.note
    monkeypatch.setattr(memory, "total_memory", lambda device: 4 * 9 * 4000)  # nine rows, but four are timed on a CPU
    assert measures.relative_speed(*case, batch=8, rounds=1).note.startswith("in batches of 4 instead of 8")
    assert asked[-2:] == [4, 4]

    monkeypatch.setattr(measures, "setting", lambda words, key: found)
    cells = table.select(rows=["Width"])
    runs = RunIndex([f"paths.outputs={tmp_path}/outputs"])
    for _ in ("measured", "kept"):
        measured, failures = measure_cells(cells, runs)
        [kept] = measured.values()
        assert (kept.value, kept.note, failures) == (found.value, found.note, {})
    console = Console(width=100, highlight=False, record=True, file=io.StringIO())
    monkeypatch.setattr(terminal, "Console", lambda **_: console)
    terminal.show_table(results_of(cells, runs, measured=measured), FULL)
    assert f"\nWidth / Value: {found.note}" in console.export_text()


def test_an_error_of_the_program_is_not_hidden(table, tmp_path, monkeypatch):
    def broken(words, key):
        raise ZeroDivisionError

    monkeypatch.setattr(measures, "setting", broken)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        measure_cells(table, RunIndex([f"paths.outputs={tmp_path}/outputs"]))


def test_what_is_measured_of_a_small_run_is_no_reproduction(table):
    heads, width = table.cells["Heads", "Value"], table.cells["Width", "Value"]
    assert cell_verdict(heads, {0: 1.0}, full=False) is Verdict.OTHER_SCALE
    assert cell_verdict(heads, {0: 1.0}, full=True) is Verdict.REPRODUCED
    assert cell_verdict(width, {0: 1.0}, full=False) is Verdict.AS_PRINTED


def test_a_reference_has_no_keys_of_the_attention_that_it_replaces():
    words = ["attention=local_block", "attention.window=50", "backbone.dim=8"]
    assert measures.reference_overrides(words, ["attention=softmax"]) == [
        "attention=local_block", "backbone.dim=8", "attention=softmax",
    ]  # fmt: skip
    assert measures.reference_overrides(words, ["backbone.depth=1"]) == [*words, "backbone.depth=1"]
    assert measures.reference_overrides(words, ["backbone=s4"]) == [*words[:2], "backbone=s4"]


def test_a_table_wider_than_the_terminal_is_shown_in_parts_and_no_number_is_cut(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    table = load_table("dba/1")
    terminal.show_table(results_with(table), FULL)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if line[:1] in "┏┃┡│└") <= 80
    of_dba = [line for line in lines if line.startswith("│ DBA ")]
    assert len(of_dba) > 1
    shown = [value for line in of_dba for value in line.split("│")[2:-1]]
    assert [value.strip() for value in shown] == [
        f"- ({table.cells['DBA', column.name].printed.text})" for column in table.columns
    ]


def test_costs_are_measured_without_the_weights_that_a_run_starts_from():
    words = ["task=imagenet", "backbone=pvt_v2"]
    spec = instantiate(load_table("ecoformer/2").cells["PVTv2-B0 MSA", "Throughput"].measure["spec"])
    expected = measures.parameters(words, spec)
    assert measures.parameters([*words, "backbone.pretrained=/nowhere/weights.pth"], spec) == expected > 3e6


@pytest.mark.slow
def test_a_network_that_reads_pairs_is_given_two_sequences():
    overrides = ["task=lra/retrieval", "backbone=s4", "scale=smoke"]
    spec = DataSpec(max_len=16, vocab=9, classes=2)
    assert measures.relative_memory(overrides, spec, ["backbone=s4"], mode="training") == 1


@pytest.mark.slow
def test_a_network_without_attention_is_measured_beside_one_with_it():
    overrides = ["task=digits_pixels", "backbone=sequence", "attention=softmax", "backbone.attention=null"]
    spec = DataSpec(max_len=256, vocab=9, classes=2)
    assert measures.relative_memory(overrides, spec, ["attention=softmax"]) < 1
