"""S4 and S4D as encoders of labelled sequences (Gu et al. 2022, https://arxiv.org/abs/2111.00396, released code)."""

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.backbones.base import AttentionEncoder, Grouped
from subquad.blocks.channel_norm import NORMS
from subquad.blocks.embeddings import TokenEmbedding
from subquad.blocks.parameter_groups import parameter_groups
from subquad.blocks.s4 import S4Block
from subquad.blocks.state_space import DiagonalStateSpace, LowRankStateSpace, Rates, StateSpace
from subquad.errors import UserError, at_least_one
from subquad.specs import DataSpec


class S4Encoder(AttentionEncoder, Grouped):
    """A stack of state space layers in place of attention: no heads, no positions, no feed-forward nets.

        x' = A x + B u,  y = Re(C x) + D u      for each channel, discretised with a step Δ of its own,

    run over the sequence in both directions as one convolution by FFT; GELU; a linear map with GLU mixes the channels.
    A block adds this to its input, with a norm before ("pre", and one after the last block) or after it ("post").

    Keys:
        kernel: "low_rank" A = Λ - p p* (S4: HiPPO-LegS, bilinear rule), "diagonal" (S4D).
        init, discretization: of S4D: "legs", "lin", "inv"; "zoh", "bilinear".
        d_state: N, numbers in the state of a channel.  n_ssm: sets of A, B that channels share; null: one a channel.
        dt_min, dt_max: Δ is log-uniform between them at first.
        order: "pre", "post".  norm: "batch" (over real tokens), "layer".
        readout: "mean" over real tokens, or the "last" real token.
        ssm_lr, dt_lr, c_lr: learning rates of A and B, of Δ, of C; null: the optimiser's. A, B and Δ are not decayed.

    Padding is 0 before each convolution and out of all statistics, so that it changes nothing. `inner_len` is the
    longest sequence after the first layer, where that is not the input's.
    """

    complexity = "time O(n (d log n + d² + N d)), memory O(n (d + N d)) in training; one kernel for all rows of a batch"

    def __init__(
        self,
        spec: DataSpec,
        dim: int,
        layers: int = 6,
        dropout: float = 0.0,
        kernel: Literal["low_rank", "diagonal"] = "low_rank",
        init: Literal["legs", "lin", "inv"] = "legs",
        discretization: Literal["zoh", "bilinear"] = "zoh",
        d_state: int = 64,
        n_ssm: int | None = None,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        order: Literal["pre", "post"] = "pre",
        norm: Literal["batch", "layer"] = "batch",
        readout: Literal["mean", "last"] = "mean",
        ssm_lr: float | None = None,
        dt_lr: float | None = None,
        c_lr: float | None = None,
        inner_len: int | None = None,
    ) -> None:
        super().__init__(spec)
        at_least_one("S4", layers=layers, dim=dim)
        choose("kernel", kernel, ("low_rank", "diagonal"))
        choose("init", init, ("legs", "lin", "inv"))
        choose("discretization", discretization, ("zoh", "bilinear"))
        choose("order", order, ("pre", "post"))
        choose("norm", norm, ("batch", "layer"))
        choose("readout", readout, ("mean", "last"))

        def model(length: int) -> StateSpace:
            shared = (d_state, n_ssm, dt_min, dt_max, Rates(ssm_lr, dt_lr, c_lr))
            if kernel == "diagonal":
                return DiagonalStateSpace(dim, init, discretization, *shared)
            return LowRankStateSpace(dim, length, *shared)

        lengths = [spec.max_len] + [inner_len or spec.max_len] * (layers - 1)
        self.embed = _embedding(spec, dim)
        self.blocks = nn.ModuleList(S4Block(dim, model(length), dropout, order, norm) for length in lengths)
        self.norm = NORMS[norm](dim) if order == "pre" else None
        self.readout = readout
        self.feature_dim = dim
        self.head = nn.Linear(dim, spec.outputs)

    def features(self, inputs: Tensor, valid: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b d"]:
        self.check_length(inputs)
        x, valid = self.encoded(self.embed(inputs).mT, valid)
        if self.norm is not None:
            x = self.norm(x, valid)
        return _mean(x, valid) if self.readout == "mean" else _last(x, valid)

    def encoded(
        self, x: Float[Tensor, "b d n"], valid: Bool[Tensor, "b n"] | None
    ) -> tuple[Float[Tensor, "b d m"], Bool[Tensor, "b m"] | None]:
        """The sequence after all blocks, and what is real of it."""
        for block in self.blocks:
            x = block(x, valid)
        return x, valid

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The rest; biases, norms and embeddings; A, B, Δ and C as the keys say."""
        return parameter_groups(self)


def choose(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises UserError at a word that is none of the choices of a key."""
    if value not in choices:
        raise UserError(f'There is no attention.{key} "{value}"; choose {" or ".join(choices)}.')


def _embedding(spec: DataSpec, dim: int) -> nn.Module:
    """As the released code: vectors of N(0, 1), and a plain linear map of real-valued steps."""
    if spec.vocab is not None:
        return TokenEmbedding(spec.vocab, dim, 1.0)
    if spec.channels is not None:
        return nn.Linear(spec.channels, dim)
    raise UserError("The data have neither a vocabulary nor channels, so there is nothing to embed.")


def _mean(x: Float[Tensor, "b d n"], valid: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b d"]:
    if valid is None:
        return x.mean(-1)
    return x.masked_fill(~valid[:, None], 0).sum(-1) / valid.sum(1, keepdim=True).clamp(min=1)


def _last(x: Float[Tensor, "b d n"], valid: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b d"]:
    """The last real token of each row; 0 where there is none."""
    if valid is None:
        return x[..., -1]
    places = torch.arange(1, x.shape[-1] + 1, device=x.device) * valid
    last = (places.amax(1) - 1).clamp(min=0)[:, None, None].expand(-1, x.shape[1], 1)
    return x.gather(2, last).squeeze(2).masked_fill(~valid.any(1, keepdim=True), 0)
