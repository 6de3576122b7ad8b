"""A small table of attentions with needs and costs, filled by hand."""

from made_results import results_with

from subquad.results.model import PROJECT
from subquad.results.table import load

TABLE = """
title: Accuracy and cost
source: nowhere
seeds: 3
reference: softmax
metric: {name: test/accuracy, label: accuracy, scale_by: 100, unit: "%"}
needs: {recall: pairs are found again, digits: images are classified}
costs: {fast: fastest on a CPU, state: smallest state}
columns:
  recall: [task=arena/recall]
  digits: [task=digits]
  fast: {measure: &m {_target_: subquad.results.measures.setting, key: backbone.dim}, metric: {label: speed to softmax}}
  state: {measure: *m, metric: {label: numbers passed on, better: equal}}
rows:
  none: [attention=softmax, backbone.attention=null]
  softmax: [attention=softmax]
  dba: [attention=dba]
  linear: [attention=linear]
  luna: [attention=luna]
"""
RECALL = {"none": [1, 1.1, 0.9], "softmax": [98, 98.4, 98.2], "dba": [97.9, 98, 98.5], "linear": [14, 14.5, 13.8]}
DIGITS = {"none": [91, 92, 93], "softmax": [92, 93, 92.5], "dba": [94, 93, 93], "linear": [93, 94, 92]}
FAST = {"none": 9, "softmax": 1, "dba": 4, "linear": 7, "luna": 5}
STATE = {"none": 0, "softmax": 2048, "dba": 1024, "linear": 512}
BENCH = {
    "machine": {"cpu": "C", "gpu": "G"}, "settings": {},
    "results": [
        {"level": "model", "mode": mode, "attention": name, "length": 1024, "median_s": seconds}
        for mode, name, seconds in (
            ("inference", "softmax", 0.002), ("inference", "dba", 0.004), ("inference", "linear", 0.001),
            ("training", "dba", 0.0001),
        )
    ],
}  # fmt: skip


def filled(folder, recall=RECALL, text=TABLE):
    path = folder / "table.yaml"
    path.write_text(text)
    table = load(path, "table")
    values = {("luna", "recall"): {0: 99.0}} | {(row, "recall"): dict(enumerate(v)) for row, v in recall.items()}
    values |= {(row, "digits"): dict(enumerate(v)) for row, v in DIGITS.items()}
    values |= {(row, name): {0: v} for name, of in (("fast", FAST), ("state", STATE)) for row, v in of.items()}
    return results_with(table, values, PROJECT)
