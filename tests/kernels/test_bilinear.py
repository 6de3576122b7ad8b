"""DBA's kernel against torch's operators, over threads, batches, lengths of tiles and padding."""

import pytest
import torch
from attention.cells import site
from torch.testing import assert_close

from kernels.checks import needs, threads
from subquad.attention.dba import DBA
from subquad.kernels import build
from subquad.specs import Masks, Pattern

pytestmark = needs("bilinear")


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("length", "padded"), [(1, False), (96, False), (301, False), (301, True)])
@pytest.mark.parametrize("keys", [{"d_p": 16}, {"d_p": 32, "z_mode": "propagate", "d_in": 10}], ids=["shared", "own Z"])
def test_the_same_as_torch(keys: dict, length: int, padded: bool, batch: int, count: int) -> None:
    torch.manual_seed(0)
    first, second = (
        DBA(site(Pattern.SELF, dim=64, heads=4, query_len=301, context_len=301, layer=i, layers=2), **keys).eval()
        for i in range(2)
    )
    for p in [*first.parameters(), *second.parameters()]:
        p.data.mul_(2)
    x = torch.randn(batch, length, 64)
    x[:, : length // 2] -= 1  # maxima grow from tile to tile
    mask = torch.rand(batch, length) < 0.5 if padded else None
    if mask is not None:
        mask[-1] = False
    masks, results = Masks(mask, mask), []

    def run() -> None:
        y, carry = first(x, x, masks)
        results.append([y, second(x, x, masks, carry)[0]])

    with threads(count), torch.inference_mode():
        run()
        with build.torchs_own():
            run()
    assert "bilinear" in build.in_use()
    assert_close(*results, rtol=1e-4, atol=1e-4)
