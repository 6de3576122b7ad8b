"""Image data: splits, batches, seeded augmentation, digits and CIFAR."""

import random
import threading

import numpy as np
import pytest
import torch
from runs import composed, data_root, prepared

from subquad.data import ragged
from subquad.data.batches import Rows
from subquad.data.images import digits
from subquad.data.images.augment import Augment, drawn_from, evaluation
from subquad.data.images.cifar import CIFAR
from subquad.data.images.images import RepeatedBatches
from subquad.specs import ImageBatch
from subquad.utils.errors import UserError

SMOKE = ("scale=smoke", "data=synthetic")
TASKS = {
    "digits": SMOKE,
    "cifar/cifar10": (*SMOKE, "data.augment.auto_augment=rand-m9-mstd0.5-inc1", "data.augment.mixup=0.8"),
    "cifar/cifar100": (*SMOKE, "recipe.sizes.cifar100.side=40"),
    "imagenet": SMOKE,
    "images/custom": (*SMOKE, "data.size=20"),
    "imagenet in shards": (*SMOKE, "data.files=parquet", "recipe.augment.cutmix=0"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return data_root(tmp_path_factory.getbasetemp())


@pytest.fixture(params=TASKS, scope="module")
def task(request):
    return request.param


def make(root, task, *overrides):
    return prepared(composed(root, root / "unused", f"task={task.split()[0]}", *TASKS[task], *overrides))


def equal(one, other):
    return torch.equal(one.images, other.images) and torch.equal(one.target, other.target)


def stream(data, epochs):
    loader, batches = data.train_dataloader(), []
    for epoch in epochs:
        loader.batch_sampler.set_epoch(epoch)
        batches += list(loader)
    return batches


def test_batches_are_what_the_spec_says(root, task):
    data = make(root, task, "protocol=clean")
    spec = data.spec
    for name in ("train", "val", "test"):
        for batch in getattr(data, f"{name}_dataloader")():
            assert isinstance(batch, ImageBatch)
            assert batch.images.shape == (len(batch), spec.channels, spec.side, spec.side)
            assert batch.images.dtype == torch.float32
            assert batch.images.isfinite().all()
            assert 0.1 < batch.images.std() < 3
            if batch.target.dtype == torch.float32:
                assert name == "train"
                assert batch.target.shape == (len(batch), spec.classes)
                torch.testing.assert_close(batch.target.sum(1), torch.ones(len(batch)))
            else:
                assert batch.target.dtype == torch.int64
                assert 0 <= batch.target.min() <= batch.target.max() < spec.classes


def test_splits_are_disjoint_where_the_protocol_says_so(root, task):
    def rows(split):
        return [np.asarray(split[i]).tobytes() for i in range(len(split))]

    overrides = () if task == "digits" else ("limits.cases=null",)
    clean = {name: rows(split) for name, split in make(root, task, "protocol=clean", *overrides).splits.items()}
    assert not set(clean["train"]) & set(clean["val"])
    assert not set(clean["test"]) & {*clean["train"], *clean["val"]}
    paper = {name: rows(split) for name, split in make(root, task, "protocol=paper", *overrides).splits.items()}
    if task == "digits":
        assert paper == clean
    else:
        assert paper["val"] == paper["test"] == clean["test"]
        assert sorted(paper["train"]) == sorted(clean["train"] + clean["val"])
    again = {
        name: rows(split) for name, split in make(root, task, "protocol=clean", "seed=3", *overrides).splits.items()
    }
    assert again == clean


def test_evaluation_sees_every_row_once_and_always_alike(root, task):
    data = make(root, task)
    batches = list(data.test_dataloader())
    targets = torch.cat([batch.target for batch in batches])
    assert np.array_equal(np.sort(targets.numpy()), np.sort(data.splits["test"].targets))
    assert all(equal(a, b) for a, b in zip(batches, data.test_dataloader(), strict=True))
    assert 0 <= data.baselines()["majority class"] < 1


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core
def test_training_does_not_depend_on_workers_or_on_what_came_before(root, task):
    overrides = ("data.steps_per_epoch=2", "data.batch_size=6")
    whole = stream(make(root, task, *overrides), [0, 1])
    for other in (
        stream(make(root, task, *overrides, "data.num_workers=2"), [0, 1]),
        stream(make(root, task, *overrides), [1]),
    ):
        assert all(equal(a, b) for a, b in zip(whole[-len(other) :], other, strict=True))
    assert not equal(whole[0], stream(make(root, task, *overrides, "seed=1"), [0])[0])


@pytest.mark.parametrize("task", [task for task in TASKS if task != "digits"])
def test_one_row_is_changed_anew_each_time_and_generators_are_left_alone(root, task):
    data = make(root, task).batched("train")
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    one, other = (data.__getitems__(Rows([0, 1, 2, 3], place)) for place in (0, 1))
    after = random.random(), np.random.rand(), torch.rand(())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert after == (random.random(), np.random.rand(), torch.rand(()))
    assert not equal(one, other)
    assert equal(one, data.__getitems__(Rows([0, 1, 2, 3], 0)))


def test_generators_come_back_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), drawn_from([0, 1]):
        torch.rand(()) / (1 // 0)
    assert torch.equal(torch.get_rng_state(), before)


# augmentation


def picture(side=48):
    from PIL import Image

    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))


def test_evaluation_takes_the_middle_in_the_colours_of_imagenet():
    from PIL import Image

    flat = Image.new("RGB", (40, 60), (255, 0, 0))
    result = evaluation(32)(flat)
    expected = (torch.tensor([1.0, 0, 0]) - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(result, expected[:, None, None].expand(3, 32, 32))
    edged = Image.new("RGB", (256, 256), (0, 0, 0))
    edged.paste((255, 255, 255), (16, 16, 240, 240))
    assert (evaluation(224)(edged) > 0).all()
    edged.paste((0, 0, 0), (0, 0, 17, 256))
    assert (evaluation(224)(edged)[:, :, 0] < 0).all()


@pytest.mark.parametrize("crop", ["none", "padded", "random", "resized"])
def test_crops_differ_by_what_they_leave_to_chance(crop):
    transform, whole = Augment(crop=crop).training(32), evaluation(32)(picture(32))
    with drawn_from([0]):
        one, other = transform(picture(32)), transform(picture(32))
    assert one.shape == (3, 32, 32)
    assert torch.equal(one, other) == (crop == "none")
    assert torch.equal(one, whole) == (crop == "none")
    if crop == "padded":  # every pixel is from the picture or padding
        known = {*whole.flatten(1).T.unique(dim=0).sum(1).tolist()}
        black = ((0 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])).sum().item()
        assert {round(v, 4) for v in one.sum(0).flatten().tolist()} <= {round(v, 4) for v in (*known, black)}


def test_a_random_crop_is_a_window_of_the_picture_enlarged_to_256_for_224():
    transform, whole = Augment(crop="random").training(56), evaluation(64, 1.0)(picture(64))
    windows = whole.unfold(1, 56, 1).unfold(2, 56, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    with drawn_from([0]):
        places = [(windows == transform(picture(64))).flatten(1).all(1).nonzero().item() for _ in range(8)]
    assert len(set(places)) > 4


def test_each_strength_reaches_timm():
    def steps(**settings):
        return [type(step).__name__ for step in Augment(**settings).training(32).transforms]

    plain = steps()
    assert "RandomErasing" in steps(erasing=0.5)
    assert "ColorJitter" in steps(color_jitter=0.4)
    assert "RandAugment" in steps(auto_augment="rand-m9-mstd0.5-inc1", color_jitter=0.4)
    assert "ColorJitter" not in steps(auto_augment="rand-m9-mstd0.5-inc1", color_jitter=0.4)
    assert "RandomHorizontalFlip" in steps(flip=True)
    assert plain == ["Resize", "CenterCrop", "MaybeToTensor", "Normalize"]
    [erase] = Augment(erasing=0.25).training(32).transforms[-1:]
    assert (erase.probability, erase.rand_color, erase.per_pixel) == (0.25, False, True)


def test_mixed_targets_are_the_shares_of_the_images():
    images = torch.arange(5.0)[:, None, None, None].expand(5, 1, 8, 8).contiguous()
    with drawn_from([0]):
        mixed, target = Augment(mixup=0.8).mix(images.clone(), torch.arange(5), 6)
    torch.testing.assert_close(mixed.mean((1, 2, 3)), target @ torch.arange(6.0))
    share = target[0, 0].item()
    assert 0 < share < 1
    torch.testing.assert_close(target[0], torch.tensor([share, 0, 0, 1 - share, 0, 0]))
    assert target[4].tolist() == [0, 0, 0, 0, 1, 0]
    with drawn_from([0]):
        cut, target = Augment(cutmix=1.0).mix(images[:4].clone(), torch.arange(4), 6)
    torch.testing.assert_close(cut.mean((1, 2, 3)), target @ torch.arange(6.0))
    assert set(cut[0].flatten().tolist()) == {0.0, 3.0}
    assert Augment().mix(images, torch.arange(5), 6)[1].tolist() == [0, 1, 2, 3, 4]


def test_an_unknown_policy_is_refused():
    with pytest.raises(UserError, match="timm knows no policy loud-m9"):
        Augment(auto_augment="loud-m9").training(32)


def test_repeated_pictures_stand_in_a_row_and_a_pass_is_as_long_as_ever():
    batches = list(RepeatedBatches(np.ones(20), 6, 0, repeats=3))
    rows = [i for batch in batches for i in batch]
    assert [len(batch) for batch in batches] == [6, 6, 6, 2]
    assert rows[0] == rows[1] == rows[2] != rows[3]
    assert len(set(rows)) == 7
    shares = [list(RepeatedBatches(np.ones(20), 6, 0, repeats=3, rank=rank, world_size=3)) for rank in range(3)]
    assert all(share[0] == batches[0][rank::3] for rank, share in enumerate(shares))
    assert shares[0][0] == shares[1][0] == shares[2][0]


def test_repeats_reach_the_loader(root):
    data = make(root, "cifar/cifar10", "recipe.augment.repeats=3")
    [first, *_] = data.train_dataloader().batch_sampler
    assert first[0] == first[1] == first[2]
    data.train_dataloader().batch_sampler.set_epoch(0)
    batch = next(iter(data.train_dataloader()))
    assert len(batch) == 8
    assert not torch.equal(batch.images[0], batch.images[1])


# digits


def test_digits_are_scikit_learns(tmp_path):
    images, labels = digits.genuine()
    from sklearn.datasets import load_digits

    assert np.array_equal(np.round(images / 255 * 16), load_digits().images)
    data = digits.DigitImages(root=str(tmp_path), batch_size=300, seed=0)
    data.prepare_data()
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 1200, "val": 297, "test": 300}
    [batch] = data.test_dataloader()
    assert batch.images.min() == -1
    assert batch.images.max() == 1
    table = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    for image, label in zip(batch.images, batch.target.tolist(), strict=True):
        assert table[((image[0].numpy() + 1) * 127.5).round().astype(np.uint8).tobytes()] == label
    assert sorted(np.bincount(labels).tolist())[0] == 174


def test_digits_as_pixels_are_the_same_rows(tmp_path):
    images = digits.DigitImages(root=str(tmp_path), batch_size=4, seed=0)
    pixels = digits.DigitPixels(root=str(tmp_path), batch_size=4, seed=0, pixels="real", centre=0.5, spread=0.5)
    images.prepare_data()
    a, b = images.batched("test").__getitems__([3, 7]), pixels.batched("test").__getitems__([3, 7])
    torch.testing.assert_close(a.images.flatten(1), b.inputs.squeeze(-1))
    assert a.target.tolist() == b.target.tolist()
    assert pixels.spec.max_len == 64


def test_digits_are_enlarged_between_their_pixels(tmp_path):
    small, large = (digits.DigitImages(root=str(tmp_path), size=size, batch_size=4, seed=0) for size in (8, 32))
    small.prepare_data()
    a, b = (data.batched("test").__getitems__([3, 7]).images for data in (small, large))
    assert b.shape == (2, 1, 32, 32)
    assert large.spec.side == 32
    assert set(large.splits["test"].lengths) == {1024}
    torch.testing.assert_close(b[..., 0, 2:-4:4], a[..., 0, :-1] * 7 / 8 + a[..., 0, 1:] / 8)
    assert torch.equal(b[..., :2, :2], a[..., :1, :1].expand(-1, -1, 2, 2))


def test_a_changed_scikit_learn_is_noticed(monkeypatch):
    import sklearn.datasets

    bunch = sklearn.datasets.load_digits()
    bunch.images = bunch.images[:-1]
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: bunch)
    with pytest.raises(UserError, match="not the known 1,797 images"):
        digits.genuine()


# CIFAR


def test_cifar_is_read_from_its_files(tmp_path):
    from subquad.data.images import cifar_files

    data = CIFAR(
        dataset="cifar100", root=str(tmp_path), size=32, augment=Augment(), synthetic=True, batch_size=40, seed=0
    )
    data.prepare_data()
    [batch] = data.test_dataloader()
    images, labels = cifar_files.read(cifar_files.files(data.home, "cifar100")["test"], "cifar100")
    assert batch.target.tolist() == labels.tolist()
    mean, std = (np.array(v, np.float32) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    expected = ((images[5] / 255 - mean) / std).transpose(2, 0, 1)
    np.testing.assert_allclose(batch.images[5].numpy(), expected, rtol=1e-4, atol=1e-5)
    assert data.spec.classes == 100


def test_stand_ins_of_cifar_are_not_taken_for_the_genuine_set(tmp_path):
    settings = {"root": str(tmp_path), "size": 32, "augment": Augment(), "batch_size": 4, "seed": 0}
    with pytest.raises(UserError, match=r"cifar-100-binary/train\.bin is missing.*unpack https"):
        CIFAR(dataset="cifar100", **settings).prepare_data()
    folder = tmp_path / "cifar" / "cifar-100-binary"
    folder.mkdir(parents=True)
    for name in ("train.bin", "test.bin"):
        np.zeros(10_000 * 3074, np.uint8).tofile(folder / name)
    with pytest.raises(UserError, match=r"train\.bin has 30740000 bytes, which is not the size of cifar100"):
        CIFAR(dataset="cifar100", **settings).prepare_data()
    assert not list((tmp_path / "cache").rglob("meta.json"))


def test_two_processes_make_one_cache(tmp_path, monkeypatch):
    made = []
    intact = ragged.write
    monkeypatch.setattr(ragged, "write", lambda *args: (made.append(args[0]), intact(*args)))
    settings = {"root": str(tmp_path), "size": 32, "augment": Augment(), "batch_size": 4, "seed": 0, "synthetic": True}
    both = [threading.Thread(target=CIFAR(dataset="cifar10", **settings).prepare_data) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len(made) == 1


def test_fewer_cases_are_a_seeded_choice(tmp_path):
    def chosen(**more):
        data = CIFAR(
            dataset="cifar10",
            root=str(tmp_path),
            size=32,
            augment=Augment(),
            synthetic=True,
            batch_size=4,
            seed=0,
            **more,
        )
        data.prepare_data()
        return data.splits["train"].indices.tolist()

    assert chosen(cases=20) == chosen(cases=20) != list(range(20))
    assert len(chosen(cases=20)) == 20
    assert chosen(cases=20) != chosen(cases=20, split_seed=1)
