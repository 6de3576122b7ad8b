"""S4 and S4D for labelled sequences (Gu et al. 2022, https://arxiv.org/abs/2111.00396, released code)."""

from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from subquad.backbones.encoder import StandaloneEncoder
from subquad.blocks.channel_norm import NORMS
from subquad.blocks.embeddings import TokenEmbedding
from subquad.blocks.s4_layer import S4Block, S4Layer
from subquad.blocks.state_space_parameters import DiagonalStateSpace, LowRankStateSpace, Rates, StateSpace
from subquad.specs import ContextMask, DataSpec, Mask
from subquad.utils.errors import UserError
from subquad.utils.setting_types import BelowOne, Count, Even, NonNegative, Positive


class S4Encoder(StandaloneEncoder):
    """A stack of state space layers in place of attention: no heads, no positions, no feed-forward nets.

        x' = A x + B u,  y = Re(C x) + D u      for each channel, discretised with a step Δ of its own,

    computed in both directions as one convolution by FFT, then GELU, then a linear map with GLU over the channels.
    Each block adds this to its input. The norm is before it ("pre", with one more after the last block) or after
    the sum ("post").

    Padding is set to 0 before each convolution and is excluded from all statistics, so that it has no effect. A, B and
    Δ have no weight decay.

    Args:
        dim: width of the model, d.
        layers: number of blocks.
        dropout: probability of dropping a channel of a sequence, after each convolution.
        kernel: low_rank A = Λ - p p* (S4: HiPPO-LegS, bilinear rule), or diagonal (S4D).
        init: initial A of S4D.
        discretization: discretisation rule of S4D.
        d_state: N, the size of the state of a channel.
        n_ssm: sets of A and B that channels share; null: one for each channel.
        dt_min: smallest initial Δ; it is drawn log-uniformly.
        dt_max: largest initial Δ.
        order: norm before each convolution, or after the sum.
        norm: batch norm over real tokens, or layer norm.
        readout: the mean over real tokens, or the last real token.
        ssm_lr: learning rate of A and B; null: the optimiser's.
        dt_lr: learning rate of Δ; null: the optimiser's.
        c_lr: learning rate of C; null: the optimiser's.
        inner_len: the longest sequence after the first layer; null: as long as the input.
    """

    complexity = "time O(n (d log n + d² + N d)), memory O(n (d + N d)) in training; one kernel for all rows of a batch"

    def __init__(
        self, spec: DataSpec, dim: Count, layers: Count = 6, dropout: BelowOne = 0.0,
        kernel: Literal["low_rank", "diagonal"] = "low_rank", init: Literal["legs", "lin", "inv"] = "legs",
        discretization: Literal["zoh", "bilinear"] = "zoh", d_state: Even = 64, n_ssm: Count | None = None,
        dt_min: Positive = 0.001, dt_max: Positive = 0.1, order: Literal["pre", "post"] = "pre",
        norm: Literal["batch", "layer"] = "batch", readout: Literal["mean", "last"] = "mean",
        ssm_lr: NonNegative | None = None, dt_lr: NonNegative | None = None, c_lr: NonNegative | None = None,
        inner_len: Count | None = None,
    ) -> None:  # fmt: skip
        super().__init__(spec)

        def model(length: int) -> StateSpace:
            shared = (d_state, n_ssm, dt_min, dt_max, Rates(ssm_lr, dt_lr, c_lr))
            if kernel == "diagonal":
                return DiagonalStateSpace(dim, init, discretization, *shared)
            return LowRankStateSpace(dim, length, *shared)

        lengths = [spec.max_len] + [inner_len or spec.max_len] * (layers - 1)
        mixers = (S4Layer(dim, model(length), dropout) for length in lengths)
        self._build(spec, mixers, dim, dropout, order, norm, readout)

    def _build(
        self, spec: DataSpec, mixers: Iterable[nn.Module], dim: int, dropout: float, order: Literal["pre", "post"],
        norm: Literal["batch", "layer"], readout: Literal["mean", "last"],
    ) -> None:  # fmt: skip
        """The parts around the layers that mix the tokens."""
        self.embed = _embedding(spec, dim)
        self.blocks = nn.ModuleList(S4Block(dim, mixer, dropout, order, norm) for mixer in mixers)
        self.norm = NORMS[norm](dim) if order == "pre" else None
        self.readout = readout
        self.feature_dim = dim
        self.head = nn.Linear(dim, spec.outputs)

    def features(self, inputs: Tensor, valid: Mask) -> Float[Tensor, "b d"]:
        self.check_length(inputs)
        x, valid = self.encoded(self.embed(inputs).mT, valid)
        if self.norm is not None:
            x = self.norm(x, valid)
        return _mean(x, valid) if self.readout == "mean" else _last(x, valid)

    def encoded(self, x: Float[Tensor, "b d n"], valid: Mask) -> tuple[Float[Tensor, "b d m"], ContextMask]:
        """The sequence after all blocks, and its mask of real tokens."""
        for block in self.blocks:
            x = block(x, valid)
        return x, valid


def _embedding(spec: DataSpec, dim: int) -> nn.Module:
    """As in the released code: token vectors from N(0, 1), or a linear map of real-valued steps."""
    if spec.vocab is not None:
        return TokenEmbedding(spec.vocab, dim, 1.0)
    if spec.channels is not None:
        return nn.Linear(spec.channels, dim)
    raise UserError("The data have neither a vocabulary nor channels, so there is nothing to embed.")


def _mean(x: Float[Tensor, "b d n"], valid: Mask) -> Float[Tensor, "b d"]:
    if valid is None:
        return x.mean(-1)
    return x.masked_fill(~valid[:, None], 0).sum(-1) / valid.sum(1, keepdim=True).clamp(min=1)


def _last(x: Float[Tensor, "b d n"], valid: Mask) -> Float[Tensor, "b d"]:
    """The last real token of each row; 0 where there is none."""
    if valid is None:
        return x[..., -1]
    places = torch.arange(1, x.shape[-1] + 1, device=x.device) * valid
    last = (places.amax(1) - 1).clamp(min=0)[:, None, None].expand(-1, x.shape[1], 1)
    return x.gather(2, last).squeeze(2).masked_fill(~valid.any(1, keepdim=True), 0)
