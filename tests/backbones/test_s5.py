"""S5: the layer against its recurrence from either end, and that padding has no effect on its gradients."""

import pytest
import torch
from attention.cells import prefix
from torch.testing import assert_close

from subquad.blocks.s5_layer import S5Layer
from subquad.blocks.state_space_parameters import Rates
from subquad.config.compose import compose_run
from subquad.utils.errors import UserError


def printed(layer: S5Layer, u: torch.Tensor) -> torch.Tensor:
    """Eq. 2 and 6 for one sequence `[n, d]` without padding, with all states and no conjugate left out."""
    rates = torch.complex(-layer.log_decay.exp(), layer.frequency)
    rates, step = torch.cat([rates, rates.conj()]), layer.log_dt.exp().repeat(2)
    b, (c, back) = torch.view_as_complex(layer.b), torch.view_as_complex(layer.c).chunk(2, 1)
    b, c, back = torch.cat([b, b.conj()]), torch.cat([c, c.conj()], 1), torch.cat([back, back.conj()], 1)
    kept = (rates * step).exp()
    written = ((kept - 1) / rates)[:, None] * b

    def states(tokens: torch.Tensor) -> torch.Tensor:
        state, rows = torch.zeros_like(kept), []
        for token in tokens:
            state = kept * state + written @ token.to(b.dtype)
            rows.append(state)
        return torch.stack(rows)

    y = states(u) @ c.T + states(u.flip(0)).flip(0) @ back.T
    assert y.imag.abs().max() < 1e-12
    z = torch.nn.functional.gelu(y.real + layer.skip * u)
    return z * layer.out(z).sigmoid()


@pytest.mark.parametrize("lengths", [[13, 13], [13, 6, 1]], ids=str)
def test_equals_the_printed_form(lengths: list[int]) -> None:
    layer = S5Layer(5, 12, 2, 0.0, 0.01, 0.5, Rates()).double()
    u, valid = torch.randn(len(lengths), 13, 5, dtype=torch.float64), prefix(lengths, 13)
    fast = layer(u.mT, None if valid.all() else valid).mT
    got = torch.cat([row[:n] for row, n in zip(fast, lengths, strict=True)])
    want = torch.cat([printed(layer, row[:n]) for row, n in zip(u, lengths, strict=True)])
    assert_close(got, want, rtol=1e-9, atol=1e-11)
    weights, parameters = torch.randn_like(got), list(layer.parameters())
    assert_close(*(torch.autograd.grad(y, parameters, weights) for y in (got, want)), rtol=1e-8, atol=1e-9)


def test_gradients_stay_in_single_precision_with_their_parameters() -> None:
    layer = S5Layer(4, 8, 2, 0.0, 0.01, 0.5, Rates())
    layer(torch.randn(1, 4, 6), None).sum().backward()
    for p in layer.bfloat16().parameters():
        assert p.grad is not None
        assert p.grad.dtype == p.dtype


def test_blocks_divide_the_states() -> None:
    with pytest.raises(UserError, match=r"12 states cannot be 5 blocks.*choose a backbone\.blocks that divides"):
        S5Layer(4, 12, 5, 0.0, 0.01, 0.5, Rates())
    with pytest.raises(UserError, match="6 states cannot be 2 blocks of pairs"):
        S5Layer(4, 6, 2, 0.0, 0.01, 0.5, Rates())


# lindermanlab/S5, bin/run_experiments/run_lra_*.sh: --n_layers, --d_model, --ssm_size_base, --blocks, --bsz, --epochs,
# and the number of training cases.
PUBLISHED = """
lra/listops      8 128  16  8 50  40  96000
lra/text         6 256 192 12 50  35  25000
lra/retrieval    6 128 256 16 32  20 147086
lra/image        6 512 384  3 50 250  45000
lra/pathfinder32 6 192 256  8 64 200 160000
"""


@pytest.mark.parametrize("line", PUBLISHED.split("\n")[1:-1])
def test_the_recipe_has_the_published_sizes(line: str) -> None:
    task, *numbers = line.split()
    *model, batch, epochs, cases = map(int, numbers)
    config = compose_run([f"task={task}", "backbone=s5", "recipe=s5"])
    assert [config.backbone[name] for name in ("layers", "dim", "d_state", "blocks")] == model
    assert config.data.batch_size == batch
    assert abs(config.trainer.max_steps - epochs * cases / batch) <= epochs
