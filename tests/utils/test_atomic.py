"""Files are replaced atomically, and temporary files are removed."""

import os
import socket
import stat
import time
from pathlib import Path
from types import ModuleType

import pytest

from subquad.utils.atomic import atomic_write, staging_folder
from subquad.utils.errors import UserError


def test_a_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    with atomic_write(path) as place:
        place.write_text("1")
        assert not path.exists()
    assert path.read_text() == "1"
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(UserError, match="new is a folder; give the name of a file"), atomic_write(path.parent):
        pass


@pytest.mark.parametrize("several", [False, True])
def test_what_fails_leaves_what_was_there(tmp_path: Path, several: bool) -> None:
    path = tmp_path / "file.json"
    path.write_text("old")
    with pytest.raises(OSError, match="full"):
        write_a_part(path, several)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("module", "name"), [(os, "getpid"), (socket, "gethostname")])
def test_processes_of_all_machines_have_places_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    path = tmp_path / "file.json"
    with atomic_write(path, several=True) as mine:
        mine.write_text("mine")
        monkeypatch.setattr(module, name, lambda: "another")
        with atomic_write(path, several=True) as other:
            other.write_text("other")
        assert path.read_text() == "other"
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed_a_day_later(tmp_path: Path) -> None:
    path = tmp_path / "file[1].json"
    names = (f".{path.name}.a.1.partial", f".{path.name}.b.2.partial", ".file1.json.a.1.partial")
    old, new, foreign = (tmp_path / name for name in names)
    for place in (old, new, foreign):
        place.touch()
    for place in (old, foreign):
        os.utime(place, (time.time() - 90000,) * 2)
    with atomic_write(path, several=True) as mine:
        mine.write_text("mine")
    assert sorted(tmp_path.iterdir()) == sorted([path, new, foreign])


def write_a_part(path: Path, several: bool) -> None:
    with atomic_write(path, several=several) as place:
        place.write_text("ne")
        raise OSError("full")


def test_who_may_read_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "file") as place:
            place.touch(0o600)  # as safetensors does
        with staging_folder(tmp_path / "folder") as place:
            place.rename(tmp_path / "folder")
    finally:
        os.umask(old)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "folder")] == [0o640, 0o750]
