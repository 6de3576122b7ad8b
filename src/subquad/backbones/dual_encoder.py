"""One encoder for two sequences and one prediction for the pair: the model of the Long Range Arena's Retrieval."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from subquad.backbones.encoder import Encoder
from subquad.blocks.head import output_head
from subquad.specs import DataSpec, Mask
from subquad.utils.setting_types import CheckedSettings, Count

Combine = Literal["concat", "concat_reversed", "nli", "nli_difference_first"]

_COMBINED: dict[str, Callable[[Tensor, Tensor], list[Tensor]]] = {
    "concat": lambda a, b: [a, b],
    "concat_reversed": lambda a, b: [b, a],
    "nli": lambda a, b: [a, b, a * b, a - b],
    "nli_difference_first": lambda a, b: [a, b, a - b, a * b],
}
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


class DualEncoder(nn.Module, CheckedSettings):
    """Maps two batches of tokens `[b, n]` to `[b, outputs]`; the encoder reads each sequence separately.

    encoder: makes the encoder; its head is removed. Both sequences go through it in one batch of 2b rows.
    combine: what the head reads, from the features e1 and e2:
        "concat" [e1, e2] (the benchmark's code, TLB); "concat_reversed" [e2, e1] (Luna's code);
        "nli" [e1, e2, e1 e2, e1 - e2] (Nyströmformer, Transformer-LS); "nli_difference_first" [e1, e2, e1 - e2, e1 e2]
        (S4), the same up to the order of the head's weights.
    head_hidden, head_layers: width of the first hidden layer of the head (None: no hidden layer) and the number of
        hidden layers, each half as wide as the one before; activation: "relu", "gelu". Luna: one layer of 512;
        Nyströmformer: one of 128; the benchmark's code: two; S4: one, with GELU.

    Source: Tay et al. 2021, https://arxiv.org/abs/2011.04006, `models/layers/common_layers.py`, and the code of each.
    """

    section = "backbone"

    def __init__(
        self, spec: DataSpec, encoder: Callable[..., Encoder], combine: Combine = "nli",
        head_hidden: Count | None = None, head_layers: Count = 1, activation: Literal["relu", "gelu"] = "relu",
    ) -> None:  # fmt: skip
        super().__init__()
        self.combine = combine
        self.tower = encoder(spec=spec)
        self.tower.head = nn.Identity()
        parts = 2 if combine.startswith("concat") else 4
        width = parts * self.tower.feature_dim
        self.head = output_head(width, spec.outputs, head_hidden, head_layers, _ACTIVATIONS[activation])

    def forward(
        self, first: Int[Tensor, "b n"], first_valid: Mask, second: Int[Tensor, "b n"], second_valid: Mask
    ) -> Float[Tensor, "b outputs"]:
        valid = None
        if first_valid is not None or second_valid is not None:
            masks = [(first, first_valid), (second, second_valid)]
            valid = torch.cat([torch.ones_like(x, dtype=torch.bool) if mask is None else mask for x, mask in masks])
        one, other = self.tower(torch.cat([first, second]), valid).chunk(2)
        return self.head(torch.cat(_COMBINED[self.combine](one, other), -1))
