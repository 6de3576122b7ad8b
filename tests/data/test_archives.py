"""Files are taken out of archives by name and size."""

import io
import tarfile
import zipfile

import pytest

from subquad.data import archives
from subquad.data.archives import FAILURES, take


def packed(path, members):
    """A zip or tar archive with these members; None stands for a symbolic link to /etc/hostname."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            member.size = len(content or b"")
            archive.addfile(member, io.BytesIO(content or b""))
    return path


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_only_the_named_files_are_taken_and_they_land_where_they_should(tmp_path, kind):
    members = {"../../set/train.tsv": b"rows", "../evil": b"x", "set/test.tsv": b"y", "reset/train.tsv": b"z"}
    target = tmp_path / "in" / "deep" / "train.tsv"
    take(packed(tmp_path / f"a.{kind}", members), {"set/train.tsv": target})
    assert target.read_bytes() == b"rows"
    assert sorted(path.name for path in tmp_path.rglob("*")) == [f"a.{kind}", "deep", "in", "train.tsv"]


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_missing_or_too_large_file_leaves_the_old_one(tmp_path, kind, monkeypatch):
    archive, target = packed(tmp_path / f"a.{kind}", {"train.tsv": b"x" * 100}), tmp_path / "train.tsv"
    target.write_text("old")
    monkeypatch.setattr(archives, "LARGEST", 99)
    for name in ("train.tsv", "other.tsv"):
        with pytest.raises(FAILURES, match=r"has 100 bytes|other\.tsv"):
            take(archive, {name: target})
    assert target.read_text() == "old"


def test_a_link_in_an_archive_is_not_followed(tmp_path):
    with pytest.raises(KeyError):
        take(packed(tmp_path / "a.tar.gz", {"train.tsv": None}), {"train.tsv": tmp_path / "train.tsv"})


def test_what_is_no_archive_is_one_of_the_failures(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK no archive")
    with pytest.raises(FAILURES):
        take(tmp_path / "a.zip", {"a": tmp_path / "a"})
