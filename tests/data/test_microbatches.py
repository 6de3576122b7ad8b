"""Microbatches of processes and accumulation: every row once, weights that add up, the same random draws."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from subquad.data.batches import EvalBatches, Rows, TrainBatches
from subquad.data.images.augment import Augment
from subquad.data.images.images import ImageSplit, TrainImages
from subquad.data.microbatches import Microbatch, MicrobatchLoader, cut
from subquad.data.ragged import Ragged
from subquad.data.split_data import SequenceData
from subquad.data.text.token_masking import Blocks, MaskedBlocks, Masking
from subquad.data.text.tokenizer import Vocabulary
from subquad.specs import UNMASKED, DataSpec, MaskedBatch, SequenceBatch
from subquad.utils.errors import UserError

LENGTHS = np.random.default_rng(0).integers(1, 50, 41)


def sequences(rows):
    return SequenceBatch(torch.arange(rows * 3).view(rows, 3), None, torch.arange(rows))


@pytest.mark.parametrize(("rows", "parts", "sizes"), [(8, 4, [2, 2, 2, 2]), (5, 2, [3, 2]), (7, 3, [3, 2, 2])])
def test_parts_hold_every_row_once_in_sizes_that_differ_by_one(rows, parts, sizes):
    batch, indices = sequences(rows), Rows(list(range(rows)), place=4)
    microbatches = cut(batch, indices, parts)
    assert [len(part) for part in microbatches] == [part.weight for part in microbatches] == sizes
    assert torch.cat([part.batch.inputs for part in microbatches]).equal(batch.inputs)
    assert torch.cat([part.batch.target for part in microbatches]).equal(batch.target)
    assert [part.first for part in microbatches] == [True] + [False] * (parts - 1)
    assert {part.share for part in microbatches} == {rows}
    assert all(part.whole is indices for part in microbatches)


def test_where_rows_run_out_one_stands_in_and_counts_nothing():
    microbatches = cut(sequences(2), Rows([5, 9], place=0), 4)
    assert [len(part) for part in microbatches] == [1, 1, 1, 1]
    assert [part.weight for part in microbatches] == [1, 1, 0, 0]
    assert {part.share for part in microbatches} == {2}


def test_masked_text_counts_hidden_tokens():
    target = torch.full((4, 6), UNMASKED)
    target[0, :3] = target[3, 0] = 7
    batch = MaskedBatch(torch.ones(4, 6, dtype=torch.long), None, target)
    assert batch.weight == 4
    assert [(part.weight, part.share) for part in cut(batch, Rows([0, 1, 2, 3], place=0), 2)] == [(3, 4), (1, 4)]


def test_a_part_survives_transport():
    [part, _] = cut(sequences(4), Rows([3, 1, 2, 0], place=6), 2)
    for other in (part.to("cpu"), pickle.loads(pickle.dumps(part))):
        assert isinstance(other, Microbatch)
        assert other.batch.inputs.equal(part.batch.inputs)
        assert (list(other.whole), other.whole.place, other.weight) == ([3, 1, 2, 0], 6, 2)
    assert part.to("meta").batch.inputs.device.type == "meta"


@pytest.mark.parametrize("world", [2, 4])
def test_processes_hold_every_row_once_and_one_without_rows_stands_in(world):
    whole = list(TrainBatches(LENGTHS, 8, seed=0))
    assert 1 in map(len, whole)
    shares = [list(TrainBatches(LENGTHS, 8, seed=0, rank=rank, world_size=world)) for rank in range(world)]
    for batch, *parts in zip(whole, *shares, strict=True):
        counted = [part for part in parts if part.counts]
        assert sorted(i for part in counted for i in part) == sorted(batch)
        assert all(len(part) for part in parts)
        for part in parts:
            assert (part.whole, part.place) == (batch, batch.place)
        for part in counted:
            assert [batch[part.position(number)] for number in range(len(part))] == part


@pytest.mark.parametrize(
    ("rows", "size", "world"), [(33, 8, 2), (33, 2, 4), (5, 1, 2), (9, 3, 4), (4, 8, 4), (41, 6, 3)]
)
def test_processes_evaluate_every_row_once_in_equally_many_batches(rows, size, world):
    of_ranks = [list(EvalBatches(LENGTHS[:rows], size, rank, world)) for rank in range(world)]
    assert len({len(batches) for batches in of_ranks}) == 1
    assert sorted(i for batches in of_ranks for batch in batches for i in batch) == list(range(rows))
    assert all(0 < len(batch) <= size + (size == 1) for batches in of_ranks for batch in batches)


def test_fewer_rows_than_processes_cannot_be_evaluated():
    with pytest.raises(UserError, match=r"2 rows to evaluate cannot be shared by 3 processes; lower trainer\.devices"):
        EvalBatches(LENGTHS[:2], 8, rank=0, world_size=3)


def masked_blocks():
    vocabulary = Vocabulary(size=40, start=1, end=2, mask=3, special=frozenset({0, 1, 2, 3}), fingerprint="a")
    tokens = np.random.default_rng(1).integers(4, 40, 11 * 30)
    return MaskedBlocks(Blocks(tokens, 12, 1), vocabulary, Masking(0.4), seed=3, fixed_seed=5)


class Squares:
    """Pictures of random pixels."""

    labels = np.arange(30) % 3

    def __getitem__(self, i):
        from PIL import Image

        return Image.fromarray(np.random.default_rng(i).integers(0, 256, (12, 12, 3), np.uint8))


def changed_images():
    augment = Augment(crop="padded", flip=True, erasing=0.5)
    split = ImageSplit(Squares(), np.arange(30), 144)
    return TrainImages(split, augment.training(12), 3, lambda images, target: (images, target))


@pytest.mark.parametrize("make", [masked_blocks, changed_images])
def test_what_is_drawn_for_a_row_does_not_hang_on_who_draws_it(make):
    dataset, rows = make(), Rows([7, 3, 11, 20, 5], place=9)
    whole = dataset.__getitems__(rows)
    for rank in range(2):
        share = dataset.__getitems__(rows.share(rank, 2))
        for mine, wanted in zip(share.network_inputs, whole.rows(slice(rank, None, 2)).network_inputs, strict=True):
            if mine is not None:
                assert_close(mine, wanted, rtol=0, atol=0)
    later = dataset.__getitems__(Rows(list(rows), place=10))
    assert not torch.equal(later.network_inputs[0], whole.network_inputs[0])


class Memory(SequenceData):
    """Forty-one rows of unequal length."""

    def prepare_data(self):
        """Nothing to do."""

    def load(self):
        values = np.repeat(np.arange(1, 42), LENGTHS).astype(np.uint8)
        rows = Ragged(values, np.cumsum([0, *LENGTHS]), np.arange(41))
        return dict.fromkeys(("train", "val", "test"), rows), "fixed"

    @property
    def spec(self):
        return DataSpec(max_len=50, vocab=42, classes=41)


class Pretended:
    """The attributes of a trainer that data use."""

    accumulate_grad_batches, global_rank, world_size = 4, 1, 2
    strategy = SimpleNamespace(root_device=torch.device("cpu"))


@pytest.mark.parametrize(("given", "batch", "size"), [(None, 24, 3), (None, 8, 1), (None, 4, 1), (5, 24, 5)])
def test_as_many_rows_are_evaluated_at_once_as_trained_on(given, batch, size):
    """Each of 2 processes has 4 microbatches per step."""
    data = Memory(batch_size=batch, seed=0, eval_batch_size=given)
    assert data.eval_batch_size == (given or batch)
    data.trainer = Pretended()
    assert data.eval_batch_size == size
    assert list(data.val_dataloader().batch_sampler) == list(EvalBatches(np.array(LENGTHS), size, 1, 2))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_give_the_parts_of_a_batch_one_after_another(workers):
    alone = Memory(batch_size=8, seed=0)
    shared = Memory(batch_size=8, seed=0, num_workers=workers)
    shared.trainer = Pretended()
    loader, batches = shared.train_dataloader(), alone.train_dataloader()
    assert isinstance(loader, MicrobatchLoader)
    assert len(loader) == 4 * len(batches)
    for epoch in (0, 2):
        for each in (loader, batches):
            each.batch_sampler.set_epoch(epoch)
        parts = list(loader)
        for number, batch in enumerate(batches):
            mine = parts[4 * number : 4 * number + 4]
            real = [part.batch.target for part in mine if part.weight]
            assert torch.cat(real or [batch.target[:0]]).equal(batch.target[1::2])
            assert shared.whole_batch(mine[0].whole).target.equal(batch.target)
