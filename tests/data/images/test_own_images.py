"""A user's own images: every kind of file, layouts of folders, splits, fingerprints, and errors that name the place."""

import os
import shutil
import unicodedata

import numpy as np
import pytest
from PIL import Image

from subquad.data.batches import Rows
from subquad.data.images.augment import Augment
from subquad.data.images.own_folder import squared
from subquad.data.images.own_images import OwnImages
from subquad.utils.errors import UserError


def write(folder, *classes, images=6, seed=0):
    rng = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(images):
            Image.fromarray(rng.integers(0, 256, (9, 12, 3)).astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def opened(folder, **settings):
    settings = {"size": 8, "augment": Augment(), "protocol": "clean", "batch_size": 4, "seed": 0} | settings
    data = OwnImages(root=str(folder.parent / "root"), folder=str(folder), **settings)
    data.prepare_data()
    return data


def pictures(data, split):
    return [np.asarray(data.splits[split][i]).tobytes() for i in range(len(data.splits[split]))]


WHITE, RED = [255, 255, 255], [255, 0, 0]


@pytest.mark.parametrize(
    ("picture", "name", "colour"),
    [
        (Image.new("L", (9, 9), 100), "a.png", [100] * 3),
        (Image.new("CMYK", (9, 9), (0, 255, 255, 0)), "a.jpg", RED),
        (Image.fromarray(np.full((9, 9), 40000, np.uint16)), "a.png", [155] * 3),
        (Image.new("RGBA", (9, 9), (255, 0, 0, 0)), "a.png", WHITE),
        (Image.new("LA", (9, 9), (0, 0)), "a.png", WHITE),
        (Image.new("RGB", (9, 9), (255, 0, 0)).convert("P"), "a.gif", RED),
        (Image.new("1", (9, 9), 1), "a.bmp", WHITE),
    ],
)
def test_every_kind_of_image_becomes_rgb(tmp_path, picture, name, colour):
    picture.save(tmp_path / name)
    assert squared(tmp_path / name, 4, "crop")[2, 2].tolist() == colour


def test_a_palette_may_be_transparent(tmp_path):
    picture = Image.new("P", (9, 9), 3)
    picture.putpalette([9] * 12)
    picture.save(tmp_path / "a.png", transparency=3)
    assert squared(tmp_path / "a.png", 4, "crop")[2, 2].tolist() == WHITE


def test_a_photograph_is_turned_as_its_camera_says(tmp_path):
    dark_left = np.repeat([[0] * 8 + [255] * 8], 16, 0).astype(np.uint8)
    exif = Image.Exif()
    exif[0x112] = 6  # turn by 90 degrees clockwise
    Image.fromarray(dark_left).save(tmp_path / "a.jpg", exif=exif)
    turned = squared(tmp_path / "a.jpg", 16, "crop")[..., 0]
    assert turned[:6].max() < 50
    assert turned[-6:].min() > 200


def test_an_image_fits_the_square_as_asked(tmp_path):
    wide = np.repeat([[0] * 8 + [128] * 8 + [255] * 8], 8, 0).astype(np.uint8)
    Image.fromarray(wide).save(tmp_path / "a.png")
    middle = {fit: squared(tmp_path / "a.png", 24, fit)[12, :, 0] for fit in ("crop", "pad", "stretch")}
    assert set(middle["crop"][4:-4]) == {128}
    assert (middle["pad"] == middle["stretch"]).all()
    assert squared(tmp_path / "a.png", 24, "pad")[2].max() == 0
    assert middle["stretch"][-1] == 255


@pytest.mark.parametrize(("fit", "columns"), [("pad", 8), ("stretch", 8), ("crop", 0)])
def test_borders_that_are_kept_are_evaluated(tmp_path, fit, columns):
    striped = np.zeros((100, 200), np.uint8)
    striped[:, :12] = striped[:, -12:] = 240
    for name in "ab":
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(striped + number).save(tmp_path / "set" / name / f"{number}.png")
    data = opened(tmp_path / "set", size=64, fit=fit, mean=[0, 0, 0], std=[1, 1, 1])
    for batched in (data.batched("test"), data.batched("train")):
        [image] = batched.__getitems__(Rows([0], 0)).images
        assert int((image[0, 32] > 0.5).sum()) == pytest.approx(columns, abs=1)


def test_an_image_of_16_bits_that_uses_few_of_them_is_refused(tmp_path):
    Image.fromarray((np.arange(64).reshape(8, 8) * 65).astype(np.uint16)).save(tmp_path / "dark.png")
    with pytest.raises(UserError, match=r"^[^(]*dark.png has values up to 4095 of the 65535"):
        squared(tmp_path / "dark.png", 8, "crop")


def test_one_folder_is_split_by_class_and_equal_images_stay_together(tmp_path, caplog):
    folder = write(tmp_path / "set", "a", "b", images=10)
    for copy in range(3):
        shutil.copy(folder / "a" / "1.png", folder / "a" / f"copy{copy}.png")
    data = opened(folder)
    for name, rows in data.splits.items():
        assert set(rows.targets) == {0, 1}, name
    train, val, test = (set(pictures(data, name)) for name in ("train", "val", "test"))
    assert not train & val
    assert not test & (train | val)
    assert not caplog.records
    shutil.move(folder / "b" / "9.png", folder / "b" / "renamed.png")
    again = opened(folder)
    assert [set(pictures(again, name)) for name in ("train", "val", "test")] == [train, val, test]


def test_folders_of_splits_are_used_and_what_is_missing_is_drawn(tmp_path, caplog):
    write(tmp_path / "set" / "train", unicodedata.normalize("NFD", "crème brûlée"), "b [x]")
    write(tmp_path / "set" / "Test", unicodedata.normalize("NFC", "crème brûlée"), "b [x]", images=2, seed=1)
    write(tmp_path / "set" / "more", "c")
    data = opened(tmp_path / "set")
    assert {name: len(rows) for name, rows in data.splits.items()} == {"train": 9, "val": 3, "test": 4}
    assert data.classes == 2
    assert "only train, val and test are read, not more" in caplog.text


def test_files_of_systems_and_links_are_no_trouble(tmp_path):
    folder = write(tmp_path / "set", "a", "train")  # a class of trains, since it holds images
    before = opened(folder).fingerprint
    for name in (".DS_Store", "a/Thumbs.db", "a/._0.png", "a/desktop.ini"):
        (folder / name).write_bytes(b"x")
    (folder / "__MACOSX" / "a").mkdir(parents=True)
    assert opened(folder).fingerprint == before
    os.symlink(folder, tmp_path / "link")
    assert opened(tmp_path / "link").fingerprint == before


def test_the_content_is_the_fingerprint(tmp_path):
    folder = write(tmp_path / "set", "a", "b")
    before = opened(folder).fingerprint
    os.utime(folder / "a" / "0.png", (1, 1))
    assert opened(folder).fingerprint == before
    assert opened(folder, val_fraction=0.4).fingerprint == before
    shutil.move(folder / "a" / "0.png", folder / "b" / "new.png")
    moved = opened(folder).fingerprint
    write(tmp_path / "other", "a", "b", seed=1)
    shutil.copy(tmp_path / "other" / "a" / "1.png", folder / "a" / "1.png")
    assert len({before, moved, opened(folder).fingerprint}) == 3
    write(tmp_path / "parts" / "train", "a", "b")
    write(tmp_path / "parts" / "Dev", "a", "b", images=2, seed=1)
    validated = opened(tmp_path / "parts").fingerprint
    (tmp_path / "parts" / "Dev").rename(tmp_path / "parts" / "Test")
    assert opened(tmp_path / "parts").fingerprint != validated


def test_images_in_two_splits_or_classes_are_said(tmp_path, caplog):
    folder = write(tmp_path / "set" / "train", "a", "b")
    shutil.copytree(folder, tmp_path / "set" / "test")
    shutil.copy(folder / "a" / "0.png", folder / "b" / "0.png")
    opened(tmp_path / "set").load()
    assert "11 of 12 rows of test are in train or val too (such as" in caplog.text
    assert "Equal rows with different labels: 1 (such as" in caplog.text
    caplog.clear()
    assert len(opened(tmp_path / "set", protocol="paper").splits["train"]) == 12
    assert "11 of 12 rows of test are in train too (such as" in caplog.text


def test_the_normalisation_is_that_of_the_settings(tmp_path):
    folder = write(tmp_path / "set", "a", "b")
    data = opened(folder, mean=[0, 0, 0], std=[1, 1, 1])
    images = data.batched("test").__getitems__([0]).images
    expected = np.asarray(data.splits["test"][0]).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(images[0], expected, atol=1e-6)


def cut(path):
    Image.effect_noise((200, 200), 99).save(path.with_suffix(".jpg"))
    content = path.with_suffix(".jpg").read_bytes()
    path.with_suffix(".jpg").write_bytes(content[: len(content) // 2])


def cut_two(path):
    cut(path)
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: cut(f / "a" / "x.png"), r"a/x\.jpg is no readable image \(image file is truncated"),
        (lambda f: cut_two(f / "a" / "x.png"), r"2 of 14 images cannot be read: .*a/x\.jpg .*a/x\.png is no readable"),
        (lambda f: (f / "c").mkdir(), "set/c has nothing where images of the class c are expected"),
        (lambda f: ((f / "c").mkdir(), (f / "c" / "x.heic").write_bytes(b"")), "only files such as x.heic"),
        (lambda f: shutil.copy(f / "a" / "0.png", f / "x.png"), r"x\.png is in no class"),
        (lambda f: os.symlink("/nowhere", f / "a" / "x.png"), r"a/x\.png is a link to a file that does not exist"),
        (lambda f: shutil.rmtree(f / "b"), "set has one class, a; images are read from"),
        (lambda f: shutil.rmtree(f), "is no folder; images are read from"),
        (lambda f: f.rename(f.parent / "x") and shutil.move(f.parent / "x", f / "x"), "mean data.folder=.*set/x"),
        (lambda f: write(f / "train", "a", "b") and write(f / "test", "a", "c"), "c/0.png has the class c, of which"),
        (lambda f: [p.unlink() for p in f.glob("*/[1-9].png")], "too few different rows"),
    ],
)  # fmt: skip
def test_bad_folders_are_refused_with_the_place(tmp_path, damage, message):
    folder = write(tmp_path / "set", "a", "b")
    damage(folder)
    with pytest.raises(UserError, match=message):
        opened(folder).load()


def test_a_folder_is_needed(tmp_path):
    with pytest.raises(UserError, match=r"needs data\.folder="):
        OwnImages(root=str(tmp_path), size=8, augment=Augment(), batch_size=4, seed=0).require()
