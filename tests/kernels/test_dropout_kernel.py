"""The dropout kernel gives exactly the results of torch's operators."""

import pytest
import torch
from torch import Tensor

from kernels.checks import needs, threads
from subquad.kernels.build import torchs_own
from subquad.kernels.dropout_kernel import takes
from subquad.ops.dropout import _WORTH, dropout

ENTRIES = _WORTH + 7


@needs("dropout")
@pytest.mark.parametrize("p", [0.1, 0.5, 1 - 2**-16])
@pytest.mark.parametrize("count", [1, 3])
def test_the_same_entries_and_gradients_to_the_bit(p: float, count: int) -> None:
    x = torch.randn(ENTRIES, generator=torch.Generator().manual_seed(0))
    x[:100] = torch.tensor([torch.inf, torch.nan, -0.0, 1e-45]).repeat(25)
    x.requires_grad_()

    def results() -> list[Tensor]:
        torch.manual_seed(1)
        y = dropout(x, p, training=True)
        return [y.detach(), *torch.autograd.grad(y, x, x.detach())]

    assert takes(x)
    with torchs_own():
        assert not takes(x)
        plain = results()
    with threads(count):
        for ours, torchs in zip(results(), plain, strict=True):
            assert torch.equal(ours.view(torch.int32), torchs.view(torch.int32))
