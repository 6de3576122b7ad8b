"""Every mechanism gives the same outputs and gradients with and without the kernels, also with padding."""

import pytest
import torch
from attention.cells import declared, first_of_each_class, prefix, shrunk, site
from conftest import made, mechanisms
from torch import Tensor
from torch.testing import assert_close

from subquad.kernels.build import torchs_own
from subquad.specs import Masks, Pattern

pytestmark = pytest.mark.slow  # because there are many

LENGTH, DIM, HEADS = 150, 64, 2
FACTORIES = {name: made("attention", name) for name in mechanisms()}
FIRST = first_of_each_class(FACTORIES)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.release] * (name not in FIRST)) for name in FACTORIES]
)
def test_the_same_with_and_without_kernels(name: str, padded: bool) -> None:
    factory = shrunk(FACTORIES[name])
    pattern = Pattern.SELF if Pattern.SELF in declared(factory) else Pattern.CROSS
    real = prefix([LENGTH, 71, 1], LENGTH) if padded else None
    torch.manual_seed(0)
    attention = factory(site=site(pattern, dim=DIM, heads=HEADS, query_len=LENGTH, context_len=LENGTH)).eval()
    x = torch.randn(3, LENGTH, DIM, requires_grad=True)

    def results() -> list[Tensor]:
        torch.manual_seed(1)
        y, _ = attention(x, x, Masks(real, real))
        kept = y if real is None else y[real]
        return [kept, *torch.autograd.grad(kept.sin().sum(), [x, *attention.parameters()], allow_unused=True)]

    with torchs_own():
        plain = results()
    assert_close(results(), plain, atol=1e-4, rtol=1e-4)
