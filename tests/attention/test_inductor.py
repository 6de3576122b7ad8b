"""torch.compile with the compiler that users get, for the exact mechanism and for DBA."""

import pytest
import torch
from conftest import made
from torch.testing import assert_close

from attention.checks import stack, tokens
from subquad.specs import Masks, Pattern


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # inside torch
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["softmax", "dba"])
def test_inductor_agrees(name: str) -> None:
    torch.compiler.reset()
    attention = stack(made("attention", name), Pattern.SELF, layers=1)[0]
    x, mask = tokens(2, 37, 24).requires_grad_(), torch.arange(37) < torch.tensor([[37], [13]])
    outputs, gradients = [], []
    for function in (attention, torch.compile(attention, fullgraph=True)):
        y = function(x, x, Masks(mask, mask))[0][mask]
        outputs.append(y)
        gradients.append(torch.autograd.grad(y.square().mean(), x)[0])
    assert_close(*outputs)
    assert_close(*gradients)
