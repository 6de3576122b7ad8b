"""CIFAR in its binary version, and its grey pixels as sequences."""

import tarfile

import numpy as np
import pytest

from subquad.data.archives import take
from subquad.data.images import cifar_files
from subquad.data.images.grey_cifar import GreyCIFAR, to_grey
from subquad.utils.errors import UserError

BATCHING = {"batch_size": 4, "seed": 0}


@pytest.mark.parametrize(("name", "label_bytes"), [("cifar10", 1), ("cifar100", 2)])
def test_records_are_read_as_they_were_written(tmp_path, name, label_bytes):
    rng = np.random.default_rng(0)
    planes = rng.integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    records = [bytes([9] * (label_bytes - 1)) + bytes([label]) + planes[label].tobytes() for label in (2, 0, 1)]
    (tmp_path / "a.bin").write_bytes(b"".join(records))
    images, labels = cifar_files.read([tmp_path / "a.bin"], name)
    assert labels.tolist() == [2, 0, 1]
    assert np.array_equal(images[0], planes[2].transpose(1, 2, 0))


def test_files_follow_one_another(tmp_path):
    cifar_files.write_synthetic(tmp_path, "cifar10")
    files = cifar_files.files(tmp_path, "cifar10")
    together = cifar_files.read(files["train"], "cifar10")
    assert len(together[1]) == 200
    assert np.array_equal(together[0][40:80], cifar_files.read(files["train"][1:2], "cifar10")[0])


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda data: data[:-1], "bytes, which is not the size of cifar10"),
        (lambda data: b"", "has 0 bytes"),
        (lambda data: b"\x63" + data[1:], "label of 10 or more"),
    ],
)
def test_damaged_files_are_named(tmp_path, change, cause):
    cifar_files.write_synthetic(tmp_path, "cifar10")
    path = cifar_files.files(tmp_path, "cifar10")["train"][2]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=cause):
        cifar_files.read([path], "cifar10")


def test_stand_ins_are_not_taken_for_the_genuine_set(tmp_path):
    folder = cifar_files.write_synthetic(tmp_path / "cifar", "cifar10")
    with pytest.raises(UserError, match="is not the size of cifar10"):
        GreyCIFAR(root=str(tmp_path), folder=str(folder), **BATCHING).prepare_data()


def test_missing_files_say_where_to_put_them(tmp_path):
    with pytest.raises(UserError, match=r"cifar-10-batches-bin/data_batch_1\.bin is missing.*unpack https"):
        GreyCIFAR(root=str(tmp_path), **BATCHING).prepare_data()


def test_only_the_wanted_members_of_an_archive_are_taken(tmp_path):
    made = cifar_files.write_synthetic(tmp_path / "made", "cifar10")
    (tmp_path / "evil").write_text("x")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for path in (made / "cifar-10-batches-bin").iterdir():
            archive.add(path, f"cifar-10-batches-bin/{path.name}")
        archive.add(tmp_path / "evil", "../../evil")
    target = tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    take(tmp_path / "a.tar.gz", cifar_files.members(cifar_files.ARCHIVES["cifar10"], target))
    assert sorted(p.name for p in tmp_path.rglob("*") if p.name == "evil") == ["evil"]
    assert len(list((target / "cifar-10-batches-bin").iterdir())) == 6
    cifar_files.files(target, "cifar10")


def test_grey_is_the_weighted_sum_cut_off():
    colours = np.array([[[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0], [10, 200, 30]]]], np.uint8)
    expected = [int(0.2989 * 255.5), int(0.587 * 255.5), int(0.114 * 255.5), int(0.9999 * 255.5), 0]
    expected.append(int((0.2989 * 10 + 0.587 * 200 + 0.114 * 30) / 255 * 255.5))
    assert to_grey(colours)[0, 0].tolist() == expected


def test_sequences_are_pixels_row_by_row(tmp_path):
    data = GreyCIFAR(root=str(tmp_path), synthetic=True, **BATCHING)
    data.prepare_data()
    assert {name: len(rows) for name, rows in data.splits.items()} == {"train": 180, "val": 20, "test": 40}
    files = cifar_files.files(data.home, "cifar10")
    images, labels = cifar_files.read([files["test"][0]], "cifar10")
    assert np.array_equal(data.splits["test"][3].reshape(32, 32), to_grey(images)[3])
    assert data.splits["test"].targets.tolist() == labels.tolist()
    assert data.spec.max_len == 1024
    assert data.spec.vocab == 257


def test_the_split_is_seeded_and_sizes_take_the_first(tmp_path):
    def rows(**settings):
        data = GreyCIFAR(root=str(tmp_path), synthetic=True, **settings, **BATCHING)
        data.prepare_data()
        return data.splits

    assert np.array_equal(rows()["val"].values, rows()["val"].values)
    assert not np.array_equal(rows()["val"].values, rows(split_seed=1)["val"].values)
    small = rows(sizes=[6, 3, 2])
    assert {name: len(part) for name, part in small.items()} == {"train": 6, "val": 3, "test": 2}
    assert np.array_equal(small["val"][2], rows()["val"][2])
    with pytest.raises(UserError, match="three whole numbers from 1"):
        GreyCIFAR(root=str(tmp_path), sizes=[1, 2], **BATCHING)
