"""The sizes of the UEA and TSER data sets, for detecting wrong or padded copies before training.

Sizes of the UEA sets: the archive's tags in sktime and the run logs of Time-Series-Library, which agree. Tables in
papers and repositories often differ from the files (ERing as 30/30, HandMovementDirection as 320/147).
Channels and steps of the TSER sets: the archive's channel descriptions (ChangWeiTan/TS-Extrinsic-Regression). Their
numbers of cases agree with the lengths of the recordings: 12,432 + 5,100 are the days of twelve stations in four years,
95 + 42 the complete days of 19,735 ten-minute steps.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from subquad.data.ragged import Ragged
from subquad.utils.errors import UserError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ArchiveSet:
    """One data set of an archive: its `task=` on the command line and its size.

    `steps` is the longest case of both files; `classes` is None for regression. `counts_from_memory` marks unconfirmed
    numbers of cases: a different number is logged and does not raise an error.
    """

    task: str
    train: int
    test: int
    channels: int
    steps: int
    classes: int | None = None
    counts_from_memory: bool = False


SETS: Mapping[str, ArchiveSet] = {
    # UEA, the ten sets of most papers
    "EthanolConcentration": ArchiveSet("uea/ethanol_concentration", 261, 263, 3, 1751, 4),
    "FaceDetection": ArchiveSet("uea/face_detection", 5890, 3524, 144, 62, 2),
    "Handwriting": ArchiveSet("uea/handwriting", 150, 850, 3, 152, 26),
    "Heartbeat": ArchiveSet("uea/heartbeat", 204, 205, 61, 405, 2),
    "JapaneseVowels": ArchiveSet("uea/japanese_vowels", 270, 370, 12, 29, 9),
    "PEMS-SF": ArchiveSet("uea/pems_sf", 267, 173, 963, 144, 7),
    "SelfRegulationSCP1": ArchiveSet("uea/self_regulation_scp1", 268, 293, 6, 896, 2),
    "SelfRegulationSCP2": ArchiveSet("uea/self_regulation_scp2", 200, 180, 7, 1152, 2),
    "SpokenArabicDigits": ArchiveSet("uea/spoken_arabic_digits", 6599, 2199, 13, 93, 10),
    "UWaveGestureLibrary": ArchiveSet("uea/uwave_gesture_library", 120, 320, 3, 315, 8),
    # UEA, the fifteen further sets of Primal-Dual Table 9
    "ArticularyWordRecognition": ArchiveSet("uea/articulary_word_recognition", 275, 300, 9, 144, 25),
    "BasicMotions": ArchiveSet("uea/basic_motions", 40, 40, 6, 100, 4),
    "Epilepsy": ArchiveSet("uea/epilepsy", 137, 138, 3, 206, 4),
    "ERing": ArchiveSet("uea/ering", 30, 270, 4, 65, 6),
    "FingerMovements": ArchiveSet("uea/finger_movements", 316, 100, 28, 50, 2),
    "Libras": ArchiveSet("uea/libras", 180, 180, 2, 45, 15),
    "NATOPS": ArchiveSet("uea/natops", 180, 180, 24, 51, 6),
    "RacketSports": ArchiveSet("uea/racket_sports", 151, 152, 6, 30, 4),
    "AtrialFibrillation": ArchiveSet("uea/atrial_fibrillation", 15, 15, 2, 640, 3),
    "Cricket": ArchiveSet("uea/cricket", 108, 72, 6, 1197, 12),
    "StandWalkJump": ArchiveSet("uea/stand_walk_jump", 12, 15, 4, 2500, 3),
    "HandMovementDirection": ArchiveSet("uea/hand_movement_direction", 160, 74, 10, 400, 4),
    "LSST": ArchiveSet("uea/lsst", 2459, 2466, 6, 36, 14),
    "DuckDuckGeese": ArchiveSet("uea/duck_duck_geese", 50, 50, 1345, 270, 5),
    "MotorImagery": ArchiveSet("uea/motor_imagery", 278, 100, 64, 3000, 2),
    # TSER, the six sets of Primal-Dual Table 8
    "AppliancesEnergy": ArchiveSet("tser/appliances_energy", 95, 42, 24, 144, counts_from_memory=True),
    "BenzeneConcentration": ArchiveSet("tser/benzene_concentration", 3433, 5445, 8, 240, counts_from_memory=True),
    "BeijingPM10Quality": ArchiveSet("tser/beijing_pm10_quality", 12432, 5100, 9, 24, counts_from_memory=True),
    "BeijingPM25Quality": ArchiveSet("tser/beijing_pm25_quality", 12432, 5100, 9, 24, counts_from_memory=True),
    "LiveFuelMoistureContent": ArchiveSet(
        "tser/live_fuel_moisture_content", 3493, 1510, 7, 365, counts_from_memory=True
    ),
    "IEEEPPG": ArchiveSet("tser/ieeeppg", 1768, 1328, 5, 1000, counts_from_memory=True),
    # regression sets that come with sktime and need no download
    "Covid3Month": ArchiveSet("tser/covid3month", 140, 61, 1, 84),
    "Tecator": ArchiveSet("tser/tecator", 172, 43, 1, 100),
}


def check_size(dataset: str, splits: Mapping[str, Ragged], labels: list[str], source: Path) -> None:
    """Compares parsed splits `train` and `test` with `SETS`; unknown data sets pass.

    Raises UserError with the differences; `source` is the folder of the files.
    """
    known = SETS.get(dataset)
    if known is None:
        return
    train, test = splits["train"], splits["test"]
    actual = {
        "train": len(train),
        "test": len(test),
        "channels": train.values.shape[1],
        "steps": int(max(train.lengths.max(), test.lengths.max())),
        "classes": len(labels) or None,
    }
    wrong = {name: value for name, value in actual.items() if value != getattr(known, name)}
    if known.counts_from_memory:
        for name in {"train", "test"} & wrong.keys():
            _log.warning(
                "%s has %s %s cases where %s were expected; the expected number is not confirmed by a source.",
                dataset, wrong.pop(name), name, getattr(known, name),
            )  # fmt: skip
    if wrong:
        differences = ", ".join(f"{name} {value} instead of {getattr(known, name)}" for name, value in wrong.items())
        raise UserError(
            f"The copy of {dataset} in {source} is not the archive's ({differences}); delete its two files and run "
            f"`python scripts/prepare.py task={known.task}`, or use them as data of your own with "
            f"data.folder={source}"
        )
