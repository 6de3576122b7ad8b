"""Data for the tests of time series: sets of sktime, synthetic data, and files written by hand."""

from pathlib import Path
from typing import Any

import numpy as np

from subquad.data.time_series.time_series import TimeSeries

HEADER = "@problemName Mine\n@timeStamps false\n@univariate false\n"
LABELLED = HEADER + "@classLabel true a b\n@data\n"


def ready(root: Path, dataset: str = "Mine", kind: str = "classification", **settings: Any) -> TimeSeries:
    data = TimeSeries(root=str(root), dataset=dataset, kind=kind, **{"batch_size": 16, "seed": 0} | settings)
    data.prepare_data()
    return data


def synthetic(tmp_path: Path, kind: str = "classification", **settings: Any) -> TimeSeries:
    if not (tmp_path / "mine").exists():
        TimeSeries.write_synthetic(tmp_path / "mine", "Mine", kind)
    return ready(tmp_path, kind=kind, folder=str(tmp_path / "mine"), **settings)


def of_text(tmp_path: Path, train: str, test: str, **settings: Any) -> TimeSeries:
    (tmp_path / "Mine_TRAIN.ts").write_text(train)
    (tmp_path / "Mine_TEST.ts").write_text(test)
    return ready(tmp_path, folder=str(tmp_path), **settings)


def raw(data: TimeSeries, split: str) -> list[np.ndarray]:
    rows = data._cache.splits[split]
    return [rows[i] for i in range(len(rows))]
