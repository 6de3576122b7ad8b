"""The records and learning curves of finished runs as tables of pandas.

Trains two attentions with two seeds for a few steps, if they are not below outputs/ yet. Prints the mean and standard
deviation over seeds of each attention, beside the majority class, and the validation accuracy of each epoch. Takes 8 s
on one core.
"""

import json
import subprocess
import sys
from pathlib import Path

import pandas

TRAIN = "train -m attention=softmax,dba seed=0,1 task=uea/basic_motions scale=smoke"


def main() -> None:
    subprocess.run([sys.executable, "-m", "subquad.cli", *TRAIN.split()], check=True)

    records, curves = [], {}
    for path in sorted(Path("outputs/runs").rglob("result.json")):
        record = json.loads(path.read_text())
        records.append(record)
        curve = pandas.read_csv(path.with_name("metrics.csv")).dropna(subset="val/accuracy")
        curves[record["attention"], record["seed"]] = curve.set_index("epoch")["val/accuracy"]

    runs = pandas.json_normalize(records)  # a column for each value, such as machine.cpu and versions.torch
    groups = runs.groupby(["task", "scale", "attention"])
    print(groups["metrics.test/accuracy"].agg(["mean", "std", "count"]).round(3))
    print(groups[["baselines.majority class", "parameters", "wall_seconds"]].mean().round(2))
    print(pandas.DataFrame(curves).round(3))


if __name__ == "__main__":
    main()
