"""The same command gives the same bits, whatever differs around it that is not the number of threads."""

import dataclasses
import subprocess
from pathlib import Path

import pytest
from runs import TINY, program, record_of

from subquad import records

RUNS = {
    "generated data, dropout": ("task=lra/listops", "attention=dba", "scale=smoke", "limits.steps=4", *TINY),
    "fitted hashes, padded series": ("task=uea/japanese_vowels", "attention=ecoformer", "scale=smoke", *TINY),
    "augmented images, sampled hashes": ("task=digits", "attention=yoso_sampled", "scale=smoke", "trainer=cpu"),
}
AROUND = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC", "LANG": "C", "COLUMNS": "80"},
    {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LANG": "C.UTF-8", "COLUMNS": "40"},
)


def run(base: Path, threads: int, overrides: tuple[str, ...], around: dict[str, str]) -> tuple[Path, records.Record]:
    """Trains in a new process with data, outputs and working folder of its own."""
    outputs = base / "outputs"
    base.mkdir(parents=True)
    command, settings = program(base / "data", outputs, "train.py", *overrides)
    settings["env"] |= around | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, timeout=300, check=False, **settings)
    assert done.returncode == 0, done.stderr
    folder = record_of(outputs)
    record = records.read(folder)
    assert record is not None
    return folder, record


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.release] * ("dropout" not in name)) for name in RUNS]
)
def test_the_same_command_gives_the_same_bits(tmp_path, name):
    (one, first), (other, second) = (
        run(tmp_path / "/".join(["deep"] * n + ["place"]), 1, RUNS[name], around) for n, around in enumerate(AROUND)
    )
    assert first.machine["threads"] == 1
    assert first.name == second.name
    for file in (records.BEST, records.HISTORY):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file
    own = {
        "wall_seconds", "peak_memory_mib", "peak_memory_of", "finished", "files", "config", "runtime", "machine",
    }  # fmt: skip
    same = [{k: v for k, v in dataclasses.asdict(record).items() if k not in own} for record in (first, second)]
    assert same[0] == same[1]
