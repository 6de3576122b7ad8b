"""The S5 layer: one state space model that reads and writes all channels, in both directions."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float
from torch import Tensor, nn

from subquad.blocks.parameter_groups import Tuned
from subquad.blocks.state_space_parameters import Rates
from subquad.ops import state_space as ssm
from subquad.ops.mixed_precision import without_autocast
from subquad.specs import Mask
from subquad.utils.errors import UserError


class S5Layer(nn.Module, Tuned):
    """x_t = Λ̄ x_{t-1} + B̄ u_t from the first token and x'_t from the last,  y = 2 Re(C x + C' x') + D u,
    then z = dropout(GELU(y)) and z ⊙ σ(W z + b).

    Λ̄ = exp(ΔΛ) and B̄ = (Λ̄ - 1) Λ⁻¹ B by zero-order hold, with a step Δ for each state. Of the N states, N/2 are kept,
    one of each conjugate pair. Λ starts as J blocks of HiPPO-LegS without its low-rank term, B and C as Gaussian
    matrices in the basis of its eigenvectors. Padding is set to 0 first, so that it has no effect.

    The parameters of the states have at least 32 bits and no weight decay, except C.
    Source: Smith et al. 2023, https://arxiv.org/abs/2208.04933, and the released code (lindermanlab/S5).
    """

    def __init__(
        self, dim: int, states: int, blocks: int, dropout: float, dt_min: float, dt_max: float, rates: Rates
    ) -> None:
        super().__init__()
        if states % (2 * blocks) or not 0 < dt_min <= dt_max:
            raise UserError(
                f"{states} states cannot be {blocks} blocks of pairs, or steps not drawn from [{dt_min}, {dt_max}]; "
                "choose a backbone.blocks that divides half of backbone.d_state, and 0 < dt_min <= dt_max."
            )
        a, _ = ssm.diagonal_pairs(states // blocks, "legs")
        pairs, self.rates = blocks * len(a), rates
        self.log_decay = nn.Parameter((-a.real).log().float().repeat(blocks))
        self.frequency = nn.Parameter(a.imag.float().repeat(blocks))
        self.log_dt = nn.Parameter(math.log(dt_min) + torch.rand(pairs) * math.log(dt_max / dt_min))
        self.b = nn.Parameter(torch.view_as_real(torch.randn(pairs, dim, dtype=torch.complex64)) / math.sqrt(states))
        read = torch.randn(dim, 2 * pairs, dtype=torch.complex64) / math.sqrt(states // 2)
        self.c = nn.Parameter(torch.view_as_real(read))
        self.skip = nn.Parameter(torch.randn(dim))
        self.dropout = nn.Dropout1d(dropout)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "b d n"], valid: Mask) -> Float[Tensor, "b d n"]:
        if valid is not None:
            x = x.masked_fill(~valid[:, None], 0)
        with without_autocast(x):
            y = self._read(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)
        z = self.dropout(F.gelu(y + self.skip[:, None] * x))
        mixed = torch.baddbmm(self.out.bias[:, None], self.out.weight.expand(z.shape[0], -1, -1), z)
        return z * mixed.sigmoid()

    def _read(self, x: Float[Tensor, "b d n"]) -> Float[Tensor, "b d n"]:
        """2 Re(C x + C' x')."""
        log_a, unit = ssm.zoh(self._rates(), torch.ones_like(self._rates()), self.log_dt.exp())
        inputs = unit * torch.view_as_complex(self.b) @ x.to(log_a.dtype)
        states = ssm.two_sided_states(inputs, log_a.squeeze(-1))
        return 2 * (torch.view_as_complex(self.c) @ states).real

    def _rates(self) -> Complex[Tensor, "p 1"]:
        return torch.complex(-self.log_decay.exp(), self.frequency)[:, None]

    def settings(self) -> Iterator[tuple[nn.Parameter, dict[str, float]]]:
        for parameter, rate in (
            (self.log_decay, self.rates.ssm), (self.frequency, self.rates.ssm), (self.b, self.rates.ssm),
            (self.log_dt, self.rates.dt),
        ):  # fmt: skip
            yield parameter, {"weight_decay": 0.0} | ({} if rate is None else {"lr": rate})
        if self.rates.c is not None:
            yield self.c, {"lr": self.rates.c}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        parameters = self.log_decay, self.frequency, self.log_dt, self.b, self.c
        kept = {id(t) for p in parameters for t in (p, p.grad)}

        def wide(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if id(tensor) not in kept or moved.element_size() >= 4 else tensor.to(moved.device)

        return super()._apply(wide, recurse)
