"""S5 for labelled sequences (Smith et al. 2023, https://arxiv.org/abs/2208.04933, released code)."""

from typing import Literal

from subquad.backbones.encoder import StandaloneEncoder
from subquad.backbones.s4 import S4Encoder
from subquad.blocks.s5_layer import S5Layer
from subquad.blocks.state_space_parameters import Rates
from subquad.specs import DataSpec
from subquad.utils.setting_types import BelowOne, Count, NonNegative, Positive


class S5Encoder(S4Encoder):
    """S4's stack of blocks, each with one state space model of all channels in place of one for each channel.

        x_t = Λ̄ x_{t-1} + B̄ u_t from either end,  y = 2 Re(C x + C' x') + D u

    computed by FFT over the tokens for each of N/2 states; then GELU, and a gate σ(W z + b). Padding is set to 0
    before each layer and is excluded from all statistics, so that it has no effect. Λ, B and Δ have no weight decay.

    Args:
        dim: width of the model, d.
        layers: number of blocks.
        dropout: probability of dropping a channel of a sequence, after each layer.
        d_state: N, the size of the state.
        blocks: J, blocks of the initial Λ.
        dt_min: smallest initial Δ; it is drawn log-uniformly.
        dt_max: largest initial Δ.
        order: norm before each layer, or after the sum.
        norm: batch norm over real tokens, or layer norm.
        readout: the mean over real tokens, or the last real token.
        ssm_lr: learning rate of Λ and B; null: the optimiser's.
        dt_lr: learning rate of Δ; null: the optimiser's.
        c_lr: learning rate of C; null: the optimiser's.
    """

    complexity = "time O(n (N log n + N d + d²)), memory O(n (d + N)) in training"

    def __init__(
        self, spec: DataSpec, dim: Count, layers: Count = 6, dropout: BelowOne = 0.0, d_state: Count = 64,
        blocks: Count = 1, dt_min: Positive = 0.001, dt_max: Positive = 0.1, order: Literal["pre", "post"] = "pre",
        norm: Literal["batch", "layer"] = "batch", readout: Literal["mean", "last"] = "mean",
        ssm_lr: NonNegative | None = None, dt_lr: NonNegative | None = None, c_lr: NonNegative | None = None,
    ) -> None:  # fmt: skip
        StandaloneEncoder.__init__(self, spec)
        rates = Rates(ssm_lr, dt_lr, c_lr)
        mixers = (S5Layer(dim, d_state, blocks, dropout, dt_min, dt_max, rates) for _ in range(layers))
        self._build(spec, mixers, dim, dropout, order, norm, readout)
