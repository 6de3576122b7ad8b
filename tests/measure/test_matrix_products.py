"""The recorded products of a computation are all of its products, with their strides, and nothing else."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from subquad.measure.benchmark import PRODUCTS_ALONE, FourMaps, PlainSoftmax, Setting, measure, program_of
from subquad.measure.matrix_products import PRODUCTS, Call, _Products, products_of


def products(run) -> list[Call]:
    with _Products() as recorded:
        run()
    return recorded.calls


def layout(run) -> list[tuple[torch.Size, tuple[int, ...], int]]:
    tensors = (part for _, args, _ in products(run) for part in args if isinstance(part, torch.Tensor))
    return [(tensor.shape, tensor.stride(), tensor.storage_offset()) for tensor in tensors]


def test_strides_are_those_of_the_computation() -> None:
    a, b = torch.randn(6, 5), torch.randn(4, 7)

    def run() -> torch.Tensor:
        return (a[2:, 1:] @ b.relu()).T.exp() @ torch.randn(4, 3)

    alone = products_of(run)
    assert len(layout(run)) == 4
    assert layout(alone) == layout(run)


def test_nothing_else_is_computed() -> None:
    """Each operator of the program is a product."""
    setting = Setting(level="layer", mode="training", length=32, dim=16)
    alone = products_of(program_of(PlainSoftmax, setting))
    records = set()

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            records.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Names():
        alone()
    assert records
    assert records <= PRODUCTS


@pytest.mark.parametrize(("mode", "count"), [("inference", 4), ("training", 12)])
def test_all_products_of_a_layer_are_there(mode, count: int) -> None:
    """Four maps, and two products of each in the backward pass."""
    run = program_of(FourMaps, Setting(level="layer", mode=mode, length=32, dim=16))
    assert len(products(run)) == len(products(products_of(run))) == count


@pytest.mark.slow
def test_they_are_measured_beside_the_layer() -> None:
    setting = Setting(level="layer", mode="inference", length=32, dim=16)
    measured = measure({"ours": PlainSoftmax, "maps": FourMaps}, setting, rounds=2, alone="ours")
    assert set(measured) == {"ours", "maps", PRODUCTS_ALONE}
    assert 0 < measured[PRODUCTS_ALONE].peak <= measured["ours"].peak
