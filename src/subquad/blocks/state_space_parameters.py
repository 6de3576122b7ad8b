"""Parameters of the state space models of a layer, and their two-sided convolution kernels."""

import abc
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from subquad.blocks.parameter_groups import Tuned
from subquad.ops import state_space as ssm
from subquad.utils.errors import UserError


class Rates(NamedTuple):
    """Learning rates of A, P and B (`ssm`), of Δ (`dt`) and of C (`c`); None: the optimiser's."""

    ssm: float | None = None
    dt: float | None = None
    c: float | None = None


class StateSpace(nn.Module, Tuned, abc.ABC):
    """d state space models with a state of size N; `forward(n)` gives the kernels of both directions, `[2, d, n]`.

    The d channels share `copies` sets of A, B (and P) in turn. Each channel has its step Δ, initialised log-uniformly
    between dt_min and dt_max, and each direction its own C, initialised complex normal.

    The parameters are log Δ, log(-Re A), Im A, B and C. They always have at least 32 bits: `.to(bfloat16)` does not
    change them, since three digits of a frequency do not determine its phase after a thousand steps. A, B, P and Δ have
    no weight decay.
    """

    def __init__(
        self, dim: int, a: Complex[Tensor, " p"], b: Complex[Tensor, " p"], copies: int | None, dt_min: float,
        dt_max: float, rates: Rates,
    ) -> None:  # fmt: skip
        super().__init__()
        copies = dim if copies is None else copies
        if dim % copies:
            raise UserError(
                f"{copies} state space models cannot serve {dim} channels in turn; choose backbone.n_ssm so that it "
                "divides the width, or null for one for each channel."
            )
        if not 0 < dt_min <= dt_max:
            raise UserError(
                f"Steps are drawn from [backbone.dt_min, backbone.dt_max], which is [{dt_min}, {dt_max}]; choose "
                "0 < dt_min <= dt_max."
            )
        self.turns, self.rates = dim // copies, rates
        low, high = math.log(dt_min), math.log(dt_max)
        self.log_dt = nn.Parameter(low + torch.rand(dim) * (high - low))
        self.log_decay = nn.Parameter((-a.real).log().float().repeat(copies, 1))
        self.frequency = nn.Parameter(a.imag.float().repeat(copies, 1))
        self.b = nn.Parameter(_pair(b.repeat(copies, 1)))
        self.c = nn.Parameter(_pair(torch.randn(2, dim, len(a), dtype=torch.complex64)))

    @property
    def dt(self) -> Float[Tensor, " d"]:
        """Δ of each channel."""
        return self.log_dt.exp()

    @property
    def a(self) -> Complex[Tensor, "d p"]:
        """The diagonal part of A for each channel."""
        return torch.complex(-self.log_decay.exp(), self.frequency).repeat(self.turns, 1)

    def channels(self, pair: Tensor) -> Complex[Tensor, "d p"]:
        """A parameter stored as real and imaginary parts, as complex numbers for each channel."""
        return torch.view_as_complex(pair).repeat(self.turns, 1)

    def settings(self) -> Iterator[tuple[nn.Parameter, dict[str, float]]]:
        for name, parameter in self.named_parameters():
            rate = {"c": self.rates.c, "log_dt": self.rates.dt}.get(name, self.rates.ssm)
            decay = {} if name == "c" else {"weight_decay": 0.0}
            yield parameter, decay | ({} if rate is None else {"lr": rate})

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def wide(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.element_size() >= 4 else tensor.to(moved.device)

        return super()._apply(wide, recurse)

    @abc.abstractmethod
    def forward(self, length: int) -> Float[Tensor, "2 d n"]:
        """Taps 0 ... n - 1 of the forward and of the backward kernel."""


class DiagonalStateSpace(StateSpace):
    """S4D (Gu et al. 2022, https://arxiv.org/abs/2206.11893): diagonal A, kernels by a Vandermonde product.

    init: "legs" (HiPPO-LegS without its low-rank term), "lin", "inv". discretization: "zoh" or "bilinear".
    """

    def __init__(
        self, dim: int, init: Literal["legs", "lin", "inv"], discretization: Literal["zoh", "bilinear"], d_state: int,
        copies: int | None, dt_min: float, dt_max: float, rates: Rates,
    ) -> None:  # fmt: skip
        super().__init__(dim, *ssm.diagonal_pairs(d_state, init), copies, dt_min, dt_max, rates)
        self.discretize = ssm.zoh if discretization == "zoh" else ssm.bilinear

    def forward(self, length: int) -> Float[Tensor, "2 d n"]:
        log_a, b = self.discretize(self.a, self.channels(self.b), self.dt)
        return ssm.diagonal_kernel(log_a, b, torch.view_as_complex(self.c), length)


class LowRankStateSpace(StateSpace):
    """S4 (Gu et al. 2022, https://arxiv.org/abs/2111.00396): A = Λ - p p*, HiPPO-LegS at first, bilinear rule.

    As in the released code the parameter `c` is C̃ = C (I - Ā^l) for kernels of l = `kernel_len` taps, so that training
    needs no power of Ā; shorter kernels are truncated. The state dict holds l, so that the weights give the same
    function in a model for longer sequences: it doubles l, C̃ ← C̃ (I + Ā^l), until l is long enough.
    """

    def __init__(
        self, dim: int, max_len: int, d_state: int, copies: int | None, dt_min: float, dt_max: float, rates: Rates
    ) -> None:
        a, p, b = ssm.legs_pairs(d_state)
        super().__init__(dim, a, b, copies, dt_min, dt_max, rates)
        self.p = nn.Parameter(_pair(p.repeat(len(self.b), 1)))
        self.kernel_len = ssm.fast_length(max_len)
        with torch.no_grad():
            c = torch.view_as_complex(self.c)
            self.c.copy_(_pair(c - ssm.advanced(c, self._a_bar(), self.kernel_len)))

    def forward(self, length: int) -> Float[Tensor, "2 d n"]:
        c, taps = torch.view_as_complex(self.c), self.kernel_len
        while taps < length:
            c, taps = c + ssm.advanced(c, self._a_bar(), taps), 2 * taps
        kernel = ssm.dplr_kernel(self.a, self.channels(self.p), self.channels(self.b), c, self.dt, taps)
        return kernel[..., :length]

    def _a_bar(self) -> Float[Tensor, "d N N"]:
        return ssm.dense_bilinear(self.a, self.channels(self.p), self.dt)

    def get_extra_state(self) -> Tensor:
        """l, stored in the state dict."""
        return torch.tensor(self.kernel_len)

    def set_extra_state(self, state: Tensor) -> None:
        """Reads l from a state dict."""
        self.kernel_len = int(state)


def _pair(x: Tensor) -> Float[Tensor, "*n 2"]:
    return torch.view_as_real(x.to(torch.complex64).contiguous()).clone()
