"""Features of images in three formats: grids, regions and HDF5, intact and damaged."""

import os
import pickle
from unittest import mock

import h5py
import numpy as np
import pytest
import torch

from subquad.data.vqa.features import open_features
from subquad.utils.errors import UserError

DIM, LIMIT = 6, 12
RNG = np.random.default_rng(0)
GRIDS = {9: RNG.random((DIM, 3, 4), np.float32), 25: RNG.random((DIM, 2, 5), np.float32)}
"""Features [dim, height, width] of two images."""


def tokens(image):
    return GRIDS[image].reshape(DIM, -1).T


def as_grids(root):
    (root / "val2014").mkdir()
    for image, grid in GRIDS.items():
        torch.save(torch.from_numpy(grid[None]), root / "val2014" / f"{image}.pth")


def as_regions(root):
    (root / "val2014").mkdir()
    for image in GRIDS:
        np.savez(root / "val2014" / f"COCO_val2014_{image:012}.jpg.npz", x=tokens(image).T, num_bbox=len(tokens(image)))


def as_hdf5(root):
    with h5py.File(root / "val2014.h5", "w") as file:
        file["9"] = tokens(9)
        file["COCO_val2014_000000000025/features"] = tokens(25).astype(np.float16)


FORMATS = {"grids": as_grids, "regions": as_regions, "hdf5": as_hdf5}


def opened(root, dim=DIM, limit=LIMIT):
    return open_features(root, "val2014", dim, limit)


@pytest.fixture(params=FORMATS)
def root(request, tmp_path):
    FORMATS[request.param](tmp_path)
    return tmp_path


def test_every_format_gives_tokens_of_mixed_number(root):
    for path in root.glob("*/*"):
        path.with_name(f"._7{path.suffix}").touch()  # hidden, so no data
    features = opened(root)
    assert features.names.keys() == {9, 25}
    for image in GRIDS:
        result = features[image]
        assert result.dtype == np.float32
        assert np.allclose(result, tokens(image), atol=1e-3)
    assert [len(features[image]) for image in (9, 25)] == [12, 10]


def test_images_without_features_are_named(root):
    opened(root).require([9, 9, 25])
    with pytest.raises(UserError, match=r"2 of 3 images have no features .* the first is image 4;"):
        opened(root).require([9, 5, 4])


def test_other_sizes_are_named(root):
    with pytest.raises(UserError, match=r"shape \[12, 6\] where at most 11 tokens of 6 numbers"):
        opened(root, limit=11)[9]
    with pytest.raises(UserError, match="at most 12 tokens of 7 numbers"):
        opened(root, dim=7)[9]


def test_readers_travel_to_other_processes(root):
    features = opened(root)
    before = features[9]
    assert np.array_equal(pickle.loads(pickle.dumps(features))[9], before)


def test_another_process_opens_the_file_for_itself(tmp_path):
    as_hdf5(tmp_path)
    features = opened(tmp_path)
    before, (_, file) = features[9], features._opened
    assert features[25] is not None
    assert features._opened[1] is file
    with mock.patch("os.getpid", return_value=-1):
        assert np.array_equal(features[9], before)
    assert features._opened[1] is not file


def test_the_fingerprint_follows_names_and_sizes(tmp_path):
    as_grids(tmp_path)
    before = opened(tmp_path).fingerprint
    assert opened(tmp_path).fingerprint == before
    torch.save(torch.zeros(1, DIM, 1, 1), tmp_path / "val2014" / "9.pth")
    assert opened(tmp_path).fingerprint != before


def test_nothing_there_says_what_to_put_where(tmp_path):
    with pytest.raises(UserError, match=r"val2014 holds no features; put there one <image id>\.pth"):
        opened(tmp_path)
    as_grids(tmp_path)
    np.savez(tmp_path / "val2014" / "30.npz", x=np.zeros((DIM, 2)))
    with pytest.raises(UserError, match=r"holds both \.pth and \.npz files"):
        opened(tmp_path)


class Malicious:
    """Runs a command where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_code_in_a_grid_file_is_refused_and_not_run(tmp_path):
    as_grids(tmp_path)
    trace = tmp_path / "ran"
    torch.save(Malicious(trace), tmp_path / "val2014" / "9.pth")
    with pytest.raises(UserError, match=r"9\.pth holds no features that can be read"):
        opened(tmp_path)[9]
    assert not trace.exists()


def test_a_pickle_in_a_region_file_is_refused_and_not_run(tmp_path):
    as_regions(tmp_path)
    trace = tmp_path / "ran"
    np.savez(tmp_path / "val2014" / "COCO_val2014_000000000009.jpg.npz", x=np.array([Malicious(trace)], object))
    with pytest.raises(UserError, match="holds no features that can be read"):
        opened(tmp_path)[9]
    assert not trace.exists()


@pytest.mark.parametrize("keep", [0, 10, 200, -1])
def test_files_that_are_cut_short_are_named(root, keep):
    packed = root / "val2014.h5"
    path = packed if packed.exists() else sorted((root / "val2014").iterdir())[0]
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"is damaged|holds no features that can be read"):
        [opened(root)[image] for image in GRIDS]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (torch.zeros(DIM, 3, 4), r"not \[1, channels, height, width\]"),
        (torch.zeros(2, DIM, 3, 4), r"not \[1, channels, height, width\]"),
        ({"features": torch.zeros(1, DIM, 3, 4)}, "can be read"),
        (torch.full((1, DIM, 3, 4), torch.nan), "no real numbers"),
        (torch.full((1, DIM, 3, 4), torch.inf), "no real numbers"),
        (torch.zeros(1, DIM, 3, 4, dtype=torch.int64), "no real numbers"),
        (torch.zeros(1, DIM, 0, 4), r"shape \[0, 6\]"),
    ],
)
def test_tensors_that_are_no_grid_are_named(tmp_path, content, cause):
    as_grids(tmp_path)
    torch.save(content, tmp_path / "val2014" / "9.pth")
    with pytest.raises(UserError, match=cause):
        opened(tmp_path)[9]


def test_half_precision_is_widened(tmp_path):
    as_grids(tmp_path)
    torch.save(torch.from_numpy(GRIDS[9][None]).half(), tmp_path / "val2014" / "9.pth")
    assert opened(tmp_path)[9].dtype == np.float32


def test_a_region_file_without_its_array_is_named(tmp_path):
    as_regions(tmp_path)
    np.savez(tmp_path / "val2014" / "COCO_val2014_000000000009.jpg.npz", y=np.zeros((DIM, 2)))
    with pytest.raises(UserError, match="can be read"):
        opened(tmp_path)[9]
