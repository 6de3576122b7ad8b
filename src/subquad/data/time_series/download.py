"""Downloads data sets of the UEA and TSER archives, which publish no checksums.

The hash of each downloaded file is shown, so that it can be compared with that of another machine; a record has the
fingerprint of the data. The number of cases is checked after parsing.
"""

import logging
from pathlib import Path

from subquad.data.archives import FAILURES, retrieve, take
from subquad.records import File
from subquad.utils.errors import UserError

log = logging.getLogger(__name__)

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
"""Zenodo records of the TSER sets (Tan et al. 2021), from aeon."""


def fetch(dataset: str, folder: Path) -> None:
    """Downloads <dataset>_TRAIN.ts and <dataset>_TEST.ts to `folder`, each atomically.

    Raises UserError when the download fails or its content is not as expected.
    """
    names = [f"{dataset}_{split}.ts" for split in ("TRAIN", "TEST")]
    try:
        if dataset in ZENODO_RECORDS:
            for name in names:
                url = ZENODO.format(record=ZENODO_RECORDS[dataset], name=name)
                retrieve(url, folder, None)
        else:
            url = UEA.format(dataset=dataset)
            archive = retrieve(url, folder, None)
            take(archive, {name: folder / name for name in names})
            archive.unlink()
    except FAILURES as error:
        raise UserError(
            f"{dataset} could not be fetched from {url} ({error}); download it elsewhere and put "
            f"{names[0]} and {names[1]} in {folder}."
        ) from None
    for name in names:
        log.warning(
            "%s: sha256 %s; the archive publishes none to compare it with.", name, File.of(folder / name).sha256
        )
