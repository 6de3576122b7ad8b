"""Pathfinder: statistics of generated images, the reader of the release, and its errors."""

import numpy as np
import pytest
from PIL import Image

from subquad.data.pathfinder.contours import SETTINGS, Contours, _tools, draw
from subquad.data.pathfinder.pathfinder import Pathfinder, draw_many
from subquad.data.pathfinder.pathfinder_release import write_synthetic
from subquad.utils.errors import UserError

BATCHING = {"batch_size": 4, "seed": 0}


def drawn(count, size=32, seed=0):
    drawn = [draw(SETTINGS[size], seed, number) for number in range(count)]
    return np.stack([image for image, _ in drawn]), np.array([label for _, label in drawn])


@pytest.fixture(scope="module")
def images():
    return drawn(250)


def test_an_image_depends_on_its_seed_and_number_alone():
    again, label = draw(SETTINGS[32], 3, 7)
    first, same = draw(SETTINGS[32], 3, 7)
    assert np.array_equal(again, first)
    assert label == same
    assert not np.array_equal(first, draw(SETTINGS[32], 3, 8)[0])
    assert not np.array_equal(first, draw(SETTINGS[32], 4, 7)[0])


@pytest.mark.slow
def test_brightness_is_stretched_to_eight_bits(images):
    pictures, _ = images
    assert pictures.dtype == np.uint8
    assert (pictures.min((1, 2)) == 0).all()
    assert (pictures.max((1, 2)) == 255).all()


@pytest.mark.slow
def test_statistics_are_the_published_generators(images):
    """3,000 images of the public code: mean .0788, sd .200, 66.0 % zeros, 8.5 % above 127, 348 (sd 39) not zero."""
    pictures, labels = images
    lit = (pictures > 0).sum((1, 2))
    error = 39 / np.sqrt(len(pictures))
    assert lit.mean() == pytest.approx(348, abs=4 * error)
    assert lit.std() == pytest.approx(39, rel=0.2)
    assert pictures.mean() / 255 == pytest.approx(0.0788, rel=0.02)
    assert pictures.std() / 255 == pytest.approx(0.200, rel=0.02)
    assert (pictures == 0).mean() == pytest.approx(0.660, abs=0.012)
    assert (pictures > 127).mean() == pytest.approx(0.085, abs=0.003)
    assert (pictures[pictures > 0] < 32).mean() == pytest.approx(0.57, abs=0.02)
    assert labels.mean() == pytest.approx(0.5, abs=0.13)
    by_label = [pictures[labels == label].mean() / 255 for label in (0, 1)]
    assert by_label[0] == pytest.approx(by_label[1], rel=0.03)


def test_markers_lie_where_the_label_says():
    """The markers lie at the two ends of one contour (label 1) or at ends of both: both discs are bright."""
    for number in range(20):
        image, _ = draw(SETTINGS[32], 0, number)
        bright = np.argwhere(image >= 0.45 * 255)
        assert len(bright) >= 8  # two discs of radius 1.5 contain at least four full pixels each


def test_paddles_are_drawn_once_for_each_heading():
    tools = _tools(SETTINGS[32], 1)
    assert tools.stamp(0.0) is tools.stamp(0.0)
    line = tools.stamp(0.0).paint
    middle = len(line) // 2
    assert line[middle, middle : middle + 3].min() > 0.3  # to the right of its start, two pixels long
    assert line[middle, : middle - 2].max() < 0.05


def test_lines_that_the_finer_grid_cannot_draw_are_refused():
    with pytest.raises(UserError, match=r"0\.3 pixels on a grid 2 times finer"):
        draw(Contours(thickness=0.3), 0, 0)


def test_chunks_are_single_images_in_order():
    pictures, labels = draw_many(32, 5, 3, 0)
    assert len(pictures) == 3
    assert np.array_equal(pictures[2], draw(SETTINGS[32], 5, 2)[0])
    assert labels == [draw(SETTINGS[32], 5, number)[1] for number in range(3)]


def test_generated_splits_are_cut_from_one_stream(tmp_path):
    data = Pathfinder(root=str(tmp_path), sizes=[5, 2, 3], workers=1, **BATCHING)
    data.prepare_data()
    whole = np.concatenate([data.splits[name].values for name in ("train", "val", "test")]).reshape(-1, 32, 32)
    assert np.array_equal(whole, drawn(10)[0])
    assert data.spec.max_len == 1024
    other = Pathfinder(root=str(tmp_path / "2"), sizes=[5, 2, 3], workers=2, **BATCHING)
    other.prepare_data()
    assert other.fingerprint == data.fingerprint


@pytest.fixture
def release(tmp_path):
    return write_synthetic(tmp_path / "release", 32)


def read(release, tmp_path, **settings):
    settings = {"sizes": [32, 4, 4], "source": "release", "release_dir": str(release), "workers": 1} | settings
    data = Pathfinder(root=str(tmp_path / "data"), **settings, **BATCHING)
    data.prepare_data()
    return data


def test_the_release_is_read_with_its_labels(release, tmp_path):
    data = read(release, tmp_path)
    pictures = {image.tobytes(): label for image, label in zip(*drawn(40, seed=1), strict=True)}
    checked = 0
    for rows in data.splits.values():
        for i in range(len(rows)):
            assert pictures[rows[i].tobytes()] == rows.targets[i]
            checked += 1
    assert checked == len(pictures) == 40


@pytest.mark.slow
def test_its_split_is_torchs_seeded_permutation(release, tmp_path):
    import torch

    order = torch.randperm(40, generator=torch.Generator().manual_seed(42)).tolist()
    pictures, _ = drawn(40, seed=1)
    test = read(release, tmp_path).splits["test"]
    assert [test[i].tobytes() for i in range(4)] == [pictures[i].tobytes() for i in order[36:]]
    assert read(release, tmp_path, split_seed=7).fingerprint != read(release, tmp_path).fingerprint


def test_tokens_leave_zero_to_padding_and_real_pixels_are_scaled(release, tmp_path):
    [tokens] = list(read(release, tmp_path).test_dataloader())
    assert tokens.inputs.min() == 1
    assert tokens.inputs.max() == 256
    assert tokens.valid is None
    real = read(release, tmp_path, pixels="real", centre=0.5, spread=0.5)
    [scaled] = list(real.test_dataloader())
    assert real.spec.channels == 1
    assert np.allclose(scaled.inputs[..., 0], ((tokens.inputs - 1) / 255 - 0.5) / 0.5, atol=1e-6)


def damage(release, what):
    image, table = release / "imgs/0/sample_3.png", release / "metadata/1.npy"
    if what == "empty image":
        image.write_bytes(b"")
    elif what == "missing image":
        image.unlink()
    elif what == "wrong size":
        Image.fromarray(np.zeros((16, 16), np.uint8)).save(image)
    elif what == "cut line":
        table.write_text(table.read_text()[:-30])
    elif what == "label":
        table.write_text(table.read_text().replace("sample_3.png 3 ", "sample_3.png 3 7 "))
    elif what == "outside":
        table.write_text(table.read_text().replace("imgs/1 sample_3", "../../imgs/1 sample_3"))
    elif what == "binary table":
        np.save(table, np.array([["a", "b"]]))
    elif what == "no tables":
        for path in (release / "metadata").iterdir():
            path.unlink()


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("empty image", r"sample_3\.png cannot be read"),
        ("missing image", r"sample_3\.png cannot be read"),
        ("wrong size", r"sample_3\.png is 16 x 16 pixels where data\.size=32"),
        ("cut line", r"1\.npy, line 20: not `folder file number label"),
        ("label", r"1\.npy, line 4: not `folder file number label"),
        ("outside", r"1\.npy, line 4: not `folder file number label"),
        ("binary table", r"1\.npy is not text"),
        ("no tables", r"has no metadata/<number>\.npy"),
    ],
)
def test_damage_is_named(release, tmp_path, what, cause):
    damage(release, what)
    with pytest.raises(UserError, match=cause):
        read(release, tmp_path)
    assert not list((tmp_path / "data").rglob("meta.json"))


def test_too_few_rows_are_named(release, tmp_path):
    with pytest.raises(UserError, match="has 32 rows for train where 100 are wanted"):
        read(release, tmp_path, sizes=[100, 4, 4])


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"size": 48}, "32, 64, 128, 256 pixels; got data.size=48"),
        ({"source": "release"}, "needs data.release_dir"),
        ({"sizes": [1, 2]}, "three whole numbers from 1"),
    ],
)
def test_impossible_settings_are_refused(tmp_path, settings, cause):
    with pytest.raises(UserError, match=cause):
        Pathfinder(root=str(tmp_path), **settings, **BATCHING)
