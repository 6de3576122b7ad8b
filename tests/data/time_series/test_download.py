"""Downloads from the archives, with a local server."""

import functools
import http.server
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from subquad.data.time_series import download
from subquad.data.time_series.time_series import TimeSeries
from subquad.utils.errors import UserError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """A folder served over HTTP in place of the archives' addresses."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "UEA", f"http://127.0.0.1:{httpd.server_port}/{{dataset}}.zip")
        patch.setattr(download, "ZENODO", f"http://127.0.0.1:{httpd.server_port}/{{record}}/{{name}}")
        yield folder
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def archive(server: Path, dataset: str, inside: str = "") -> None:
    TimeSeries.write_synthetic(server / "plain", dataset, "classification")
    with zipfile.ZipFile(server / f"{dataset}.zip", "w") as files:
        for path in (server / "plain").glob("*.ts"):
            files.write(path, inside + path.name)
        files.writestr("../escaped.txt", "no")


@pytest.mark.parametrize("inside", ["", "Handwriting/"])
def test_uea_files_are_taken_from_the_zip_and_nothing_else(server: Path, tmp_path: Path, inside: str) -> None:
    archive(server, "Handwriting", inside)
    home = tmp_path / "data" / "uea" / "Handwriting"
    download.fetch("Handwriting", home)
    assert sorted(p.name for p in home.iterdir()) == ["Handwriting_TEST.ts", "Handwriting_TRAIN.ts"]
    assert (home / "Handwriting_TRAIN.ts").read_bytes() == (server / "plain/Handwriting_TRAIN.ts").read_bytes()
    assert not list(tmp_path.rglob("escaped.txt"))


def test_tser_files_come_from_their_record(server: Path, tmp_path: Path) -> None:
    TimeSeries.write_synthetic(server / "3902710", "IEEEPPG", "regression")
    download.fetch("IEEEPPG", tmp_path / "home")
    assert sorted(p.name for p in (tmp_path / "home").iterdir()) == ["IEEEPPG_TEST.ts", "IEEEPPG_TRAIN.ts"]


def test_an_archive_that_is_not_there_is_one_sentence(server: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Handwriting could not be fetched .* put Handwriting_TRAIN.ts"):
        download.fetch("Handwriting", tmp_path / "home")


def test_a_damaged_zip_is_one_sentence(server: Path, tmp_path: Path) -> None:
    (server / "Handwriting.zip").write_bytes(b"PK not a zip")
    with pytest.raises(UserError, match="could not be fetched"):
        download.fetch("Handwriting", tmp_path / "home")


def test_files_that_are_here_are_not_fetched(server: Path, tmp_path: Path) -> None:
    data = TimeSeries(root=str(tmp_path), dataset="BasicMotions", kind="classification", batch_size=4, seed=0)
    data.fetch()
    assert not (tmp_path / "uea").exists()
