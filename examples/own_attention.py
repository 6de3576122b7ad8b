"""An attention of your own: written, checked and trained on a task at laptop scale.

The attention weights a token by its distance alone. Prints whether padding changes an output, how time and memory grow
with the length, and the accuracy on BasicMotions beside that of the majority class. Takes 14 s on one core.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from subquad import Masks, Pattern, Site, StatelessAttention


class Nearby(StatelessAttention):
    """y_i = W_O concat_h softmax_j(-s_h |i - j|) W_V,h c_j; each head h learns its scale s_h > 0."""

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n² d), memory O(n²)"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.value, self.out = nn.Linear(site.dim, site.dim), nn.Linear(site.dim, site.dim)
        self.log_scale = nn.Parameter(torch.linspace(-3, 0, site.heads))

    def attend(self, x: torch.Tensor, context: torch.Tensor, masks: Masks) -> torch.Tensor:
        place = torch.arange(x.shape[1], device=x.device)
        distance = (place[:, None] - place).abs()
        scores = (-self.log_scale.exp()[:, None, None] * distance)[None]  # [1, heads, n, n]
        if masks.context is not None:
            scores = scores.masked_fill(~masks.context[:, None, None], -1e4)  # finite, for rows that are all padding
        values = self.value(context).unflatten(-1, (self.site.heads, -1)).transpose(1, 2)
        return self.out((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))


def main() -> None:
    layer, x = Nearby(dim=32, heads=4, max_len=64), torch.randn(1, 20, 32)
    padded = layer(torch.cat([x, torch.randn(1, 5, 32)], 1), mask=(torch.arange(25) < 20)[None])
    print(f"padding changes outputs by {(padded[:, :20] - layer(x)).abs().max():.0e}", flush=True)

    configs = Path("my_configs/attention")
    configs.mkdir(parents=True, exist_ok=True)
    (configs / "nearby.yaml").write_text("# Nearby\n_target_: own_attention.Nearby\n_partial_: true\n")
    found = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "SUBQUAD_CONFIGS": "my_configs"}
    for command in (
        "check attention=nearby contract=false lengths=[256,512,1024]",
        "train attention=nearby task=uea/basic_motions scale=laptop backbone.layers=1 backbone.dim=64 backbone.ffn=64",
    ):
        subprocess.run([sys.executable, "-m", "subquad.cli", *command.split()], env=found, check=True)


if __name__ == "__main__":
    main()
