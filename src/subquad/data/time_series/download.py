"""Fetches a data set of the UEA or TSER archive. They publish no checksums: sizes are checked after parsing."""

import zipfile
from pathlib import Path

from subquad.utils.atomic import atomic_write
from subquad.utils.errors import UserError

UEA = "https://timeseriesclassification.com/aeon-toolkit/{dataset}.zip"
ZENODO = "https://zenodo.org/record/{record}/files/{name}"
ZENODO_RECORDS = {
    "AppliancesEnergy": 3902637,
    "BenzeneConcentration": 3902673,
    "BeijingPM10Quality": 3902667,
    "BeijingPM25Quality": 3902671,
    "LiveFuelMoistureContent": 4632439,
    "IEEEPPG": 3902710,
    "Covid3Month": 3902690,
}
"""Records of the TSER sets (Tan et al. 2021), as aeon lists them."""


def fetch(dataset: str, folder: Path) -> None:
    """Leaves <dataset>_TRAIN.ts and <dataset>_TEST.ts in `folder`; each appears whole or not at all.

    Raises UserError when the archive cannot be reached or its file is not what it should be.
    """
    import pooch  # needed by `scripts/prepare.py` only

    names = [f"{dataset}_{split}.ts" for split in ("TRAIN", "TEST")]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if dataset in ZENODO_RECORDS:
            for name in names:
                url = ZENODO.format(record=ZENODO_RECORDS[dataset], name=name)
                pooch.retrieve(url, known_hash=None, fname=name, path=folder, progressbar=True)
            return
        url = UEA.format(dataset=dataset)
        archive = Path(pooch.retrieve(url, known_hash=None, fname=f"{dataset}.zip", path=folder, progressbar=True))
        _take(archive, names, folder)
        archive.unlink()
    except (OSError, ValueError, zipfile.BadZipFile, KeyError) as error:
        raise UserError(
            f"{dataset} could not be fetched from {url} ({error}); download it elsewhere and put "
            f"{names[0]} and {names[1]} in {folder}."
        ) from None


def _take(archive: Path, names: list[str], folder: Path) -> None:
    """Reads the two files out of the archive by name; nothing else of it touches the disk."""
    with zipfile.ZipFile(archive) as files:
        for name in names:
            [member] = [m for m in files.namelist() if Path(m).name == name] or [name]
            with atomic_write(folder / name) as place:
                place.write_bytes(files.read(member))
