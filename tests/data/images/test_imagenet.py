"""ImageNet in folders and in shards: order, labels, and errors of files."""

import io
import json
import re
import shutil

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from subquad.data import ragged
from subquad.data.batches import Rows
from subquad.data.images import imagenet_files
from subquad.data.images.augment import Augment
from subquad.data.images.imagenet import ImageNet
from subquad.utils.errors import UserError, _user_error

SETTINGS = {"size": 32, "augment": Augment(), "batch_size": 4, "seed": 0}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    home = tmp_path_factory.mktemp("imagenet") / "home"
    imagenet_files.write_synthetic(home)
    return home


@pytest.fixture
def home(written, tmp_path):
    return shutil.copytree(written, tmp_path / "home")


def opened(home, root, files="folder", synthetic=True, **settings):
    """ImageNet in `home`, with the row counts of the published set required unless `synthetic`."""
    data = ImageNet(root=str(root), folder=str(home), files=files, **SETTINGS, **settings)
    data.synthetic = synthetic
    data.home = home
    if not synthetic:
        data.prepare_data()
    elif files == "folder":
        ragged.prepare(data.cache_folder, data._make)
    return data


def test_the_synthetic_of_a_run_is_written_once(tmp_path):
    data = ImageNet(root=str(tmp_path), synthetic=True, **SETTINGS)
    data.prepare_data()
    before = data.fingerprint
    again = ImageNet(root=str(tmp_path), synthetic=True, **SETTINGS)
    again.prepare_data()
    assert again.fingerprint == before
    assert {name: len(split) for name, split in again.splits.items()} == {"train": 32, "val": 16, "test": 16}
    assert again.spec.classes == 1000


@pytest.mark.parametrize("files", ["folder", "parquet"])
def test_images_come_with_the_class_of_their_folder(home, tmp_path, files):
    home = home.rename(tmp_path / "home_[v1]")  # the name is a pattern
    first = next((home / "train").rglob("*.JPEG"))
    shutil.copytree(first.parent, home / "train" / ".thumbnails")
    for path in (first, shard(home)):
        path.with_name(f"._{path.name}").write_bytes(b"")
    splits = opened(home, tmp_path, files).splits
    known = imagenet_files.wnids()
    assert known[0] == "n01440764"
    assert known[999] == "n15075141"
    for split, folder in (("train", "train"), ("test", "val")):
        rows = splits[split]
        expected = sorted((home / folder).rglob("n*/n*.JPEG"))
        assert len(rows) == len(expected)
        for i, path in enumerate(expected):
            assert known[rows.targets[i]] == path.parent.name
            assert rows[i].mode == "RGB"
            assert np.array_equal(np.asarray(rows[i]), np.asarray(Image.open(path)))


def test_both_forms_give_the_same_rows_and_fingerprints_follow_the_files(home, tmp_path):
    folder, shards = opened(home, tmp_path), opened(home, tmp_path, "parquet")
    assert folder.splits["train"].targets.tolist() == shards.splits["train"].targets.tolist()
    before = folder.fingerprint
    last = sorted((home / "train").rglob("*.JPEG"))[-1]
    last.rename(last.with_name("another.JPEG"))
    assert opened(home, tmp_path).fingerprint != before


def test_grey_and_print_colours_become_rgb(home, tmp_path):
    paths = sorted((home / "train").rglob("*.JPEG"))
    Image.new("L", (40, 40), 7).save(paths[0], "JPEG")
    Image.new("CMYK", (40, 40)).save(paths[1], "JPEG")
    Image.new("RGBA", (40, 40)).save(paths[2], "PNG")
    sixteen = np.arange(64, dtype=np.uint16).repeat(64).reshape(64, 64) * 1028
    Image.fromarray(sixteen).save(paths[3], "PNG")
    rows = opened(home, tmp_path).splits["train"]
    assert [rows[i].mode for i in range(4)] == ["RGB"] * 4
    assert np.asarray(rows[0])[0, 0].tolist() == [7, 7, 7]
    assert np.array_equal(np.asarray(rows[3])[:, 0, 1], np.arange(64) * 4)


def test_a_damaged_image_is_named_when_it_is_read(home, tmp_path):
    paths = sorted((home / "train").rglob("*.JPEG"))
    paths[3].write_bytes(paths[3].read_bytes()[:300])
    paths[5].write_bytes(b"no image")
    data = opened(home, tmp_path)
    assert len(data.splits["train"]) == 32
    paths[6].unlink()
    for i in (3, 5, 6):
        with pytest.raises(UserError, match=rf"{paths[i].name} is no readable image"):
            data.splits["train"][i]
    images = data.batched("train")
    with pytest.raises(UserError, match=paths[3].name):
        images.__getitems__(Rows([0, 3], 0))


def test_a_damaged_image_found_by_a_worker_is_named_in_one_sentence(home, tmp_path):
    path = sorted((home / "val").rglob("*.JPEG"))[3]
    path.write_bytes(path.read_bytes()[:300])
    data = opened(home, tmp_path, num_workers=1)
    with pytest.raises(UserError) as caught:
        list(data.test_dataloader())
    assert re.fullmatch(
        rf"{path} is no readable image \(.*\); replace it with a fresh copy\.", str(_user_error(caught.value))
    )


def shard(home, split="train"):
    return home / "data" / f"{imagenet_files.PREFIX[split]}-00000-of-00001.parquet"


@pytest.mark.slow
def test_a_damaged_image_in_a_shard_is_named(home, tmp_path):
    table = parquet.read_table(shard(home))
    rows = table["image"].to_pylist()
    rows[2]["bytes"] = rows[2]["bytes"][:100]
    parquet.write_table(table.set_column(0, "image", pyarrow.array(rows)), shard(home))
    with pytest.raises(UserError, match=rf"{rows[2]['path']} is no readable image"):
        opened(home, tmp_path, "parquet").splits["train"][2]


def test_shards_without_hugging_faces_description_are_read(home, tmp_path):
    for split in ("train", "val"):
        parquet.write_table(parquet.read_table(shard(home, split)).replace_schema_metadata(), shard(home, split))
    assert opened(home, tmp_path, "parquet").splits["train"][0].mode == "RGB"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda home: shutil.rmtree(home / "val"), r"home/val is missing; ImageNet-1k has to be asked for"),
        (lambda home: (home / "val" / "dog").mkdir(), r"val/dog is no class of ImageNet-1k"),
        (lambda home: shutil.rmtree(home / "train" / "n01440764"), r"train lacks 1 of 1,000 classes \(n01440764"),
        (lambda home: [shutil.rmtree(p) for p in (home / "val").iterdir()], r"val lacks 8 of 1,000 classes"),
        (lambda home: None, r"train has 32 images for train where ImageNet-1k has 1,281,167"),
    ],
)
def test_what_is_wrong_with_folders_is_named(home, tmp_path, monkeypatch, change, cause):
    known = imagenet_files.wnids()[:8]  # the classes of the synthetic data, which are then complete
    monkeypatch.setattr(imagenet_files, "wnids", lambda: known)
    change(home)
    with pytest.raises(UserError, match=cause):
        opened(home, tmp_path, synthetic=False)
    assert not list(tmp_path.rglob("meta.json"))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda home: shard(home).unlink(), r"There is no train-\*\.parquet in"),
        (lambda home: shard(home).write_bytes(shard(home).read_bytes()[:-50]), r"00001\.parquet is damaged"),
        (lambda home: parquet.write_table(pyarrow.table({"a": [1]}), shard(home)), r"no columns image and label"),
        (lambda home: None, r"has 32 images for train where ImageNet-1k has 1,281,167"),
    ],
)
def test_what_is_wrong_with_shards_is_named(home, tmp_path, change, cause):
    change(home)
    with pytest.raises(UserError, match=cause):
        opened(home, tmp_path, "parquet", synthetic=False)


@pytest.mark.parametrize("label", [-1, 1000])
def test_labels_out_of_range_are_named(home, tmp_path, label):
    table = parquet.read_table(shard(home)).replace_schema_metadata()
    labels = [label, *table["label"].to_pylist()[1:]]
    parquet.write_table(table.set_column(1, "label", pyarrow.array(labels)), shard(home))
    with pytest.raises(UserError, match=f"hold labels from {min(label, 0)} to {max(label, 7)} where 0 to 999"):
        opened(home, tmp_path, "parquet").load()


def test_shards_that_cannot_be_copied_are_named(home, tmp_path):
    whole = shard(home).read_bytes()
    shard(home).write_bytes(whole[:4] + b"\xff" * 60 + whole[64:])
    with pytest.raises(UserError, match=r"could not be copied to .*free some space, or replace the damaged ones"):
        opened(home, tmp_path, "parquet").load()


def test_the_description_of_the_synthetic_is_hugging_faces(home):
    about = json.loads(parquet.read_schema(shard(home)).metadata[b"huggingface"])
    assert about["info"]["features"]["label"]["names"][:2] == ["n01440764", "n01443537"]
    row = parquet.read_table(shard(home)).slice(0, 1).to_pylist()[0]
    assert Image.open(io.BytesIO(row["image"]["bytes"])).format == "JPEG"
