"""DBA's kernels compared with torch's operators, for several threads, batches, lengths of tiles and padding."""

import pytest
import torch
from attention.cells import site
from torch import Tensor
from torch.testing import assert_close

from kernels.checks import needs, threads
from subquad.attention.dba import DBA
from subquad.kernels import bilinear_kernel, build
from subquad.specs import Masks, Pattern

pytestmark = needs("bilinear")

KEYS = [{"d_p": 16, "d_in_mode": "single_map"}, {"d_p": 32, "z_mode": "propagate", "d_in": 10}]
several = pytest.mark.parametrize("batch", [1, 3])
both_keys = pytest.mark.parametrize("keys", KEYS, ids=["shared", "own Z"])


def layers(keys: dict, factor: float = 1) -> torch.nn.ModuleList:
    """Two layers, the second of which reads the Z of the first; their weights are multiplied by `factor`."""
    torch.manual_seed(0)
    size = {"dim": 64, "heads": 4, "query_len": 301, "context_len": 301}
    made = torch.nn.ModuleList(DBA(site(Pattern.SELF, layer=i, layers=2, **size), **keys) for i in range(2))
    for p in made.parameters():
        p.data.mul_(factor)
    return made


def inputs(batch: int, length: int, padded: bool) -> tuple[Tensor, Masks]:
    x = torch.randn(batch, length, 64)
    x[:, : length // 2] -= 1  # maxima grow from tile to tile
    mask = torch.rand(batch, length) < 0.5 if padded else None
    if mask is not None and batch > 1:
        mask[-1] = False
    return x, Masks(mask, mask)


@pytest.mark.parametrize("count", [1, 2, 3])
@several
@pytest.mark.parametrize(("length", "padded"), [(1, False), (96, False), (301, False), (301, True)])
@both_keys
def test_the_same_as_torch(keys: dict, length: int, padded: bool, batch: int, count: int) -> None:
    first, second = layers(keys, 2)
    x, masks = inputs(batch, length, padded)
    results = []

    def run() -> None:
        y, carry = first(x, x, masks)
        results.append([y, second(x, x, masks, carry)[0]])

    with threads(count), torch.inference_mode():
        run()
        with build.torchs_own():
            run()
    assert "bilinear" in build.in_use()
    assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [1, 3])
@several
@pytest.mark.parametrize("padded", [False, True])
@both_keys
def test_the_same_gradients_as_torch_in_double_precision(keys: dict, padded: bool, batch: int, count: int) -> None:
    made = layers(keys)
    x, masks = inputs(batch, 301, padded)
    results = []
    for dtype in (torch.float32, torch.float64):
        source = x.to(dtype).requires_grad_()
        made.to(dtype)
        with threads(count):
            y, carry = made[0](source, source, masks)
            y = y + made[1](source, source, masks, carry)[0]
            results.append([y, *torch.autograd.grad(y.sin().sum(), [source, *made.parameters()])])
    assert "bilinear_backward" in build.in_use()
    for found, expected in zip(*results, strict=True):
        assert_close(found.double(), expected, rtol=0, atol=1e-4 * (1 + expected.abs().max().item()))


def test_operands_of_other_shapes_are_left_to_torch() -> None:
    square, vector = torch.ones(64, 64), torch.ones(64)
    weights = [square, vector, square, square, vector, *[torch.ones(16, 64)] * 2, torch.ones(16), square, vector]
    operands = [torch.ones(3, 9, 64), torch.ones(1, 16, 64), *weights, torch.ones(32, 64)]

    def taken() -> bool:
        x, z, *maps = operands
        return bilinear_kernel.takes(x, z, maps, 4, gradients=False)

    assert taken()
    for number, right in enumerate(operands):
        for strange in (torch.cat([right, right], -1), right[:-1] if number else right[..., :32]):
            operands[number] = strange
            assert not taken(), number
        operands[number] = right
    operands[1] = torch.ones(3, 16, 64)
    assert taken()
    operands[1] = torch.ones(2, 16, 64)
    assert not taken()
