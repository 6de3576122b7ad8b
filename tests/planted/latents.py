"""Planted bugs of attention between many tokens and few rows."""

from planted import Bug

FILE = "ops/latents.py"

BUGS = [
    Bug("gathering without gradients forgets the mask", FILE, "attn_mask=real, scale", "scale"),
    Bug("gathering without gradients scales again", FILE, ", scale=1.0)", ")"),
    Bug("gathering in training forgets the mask", FILE, "None if mask is None else mask[:, None])", "None)"),
    Bug(
        "reading forgets the mask",
        FILE,
        "None if mask is None else mask[:, None, None])\n        weights",
        "None)\n        weights",
    ),
    Bug("reading forgets the bias of its logits", FILE, "bias.flatten(1)[:, None], part", "bias.new_zeros(()), part"),
    Bug(
        "reading forgets the bias of its output",
        FILE,
        "torch.baddbmm(out_bias, weights, ",
        "torch.baddbmm(out_bias * 0, weights, ",
    ),
    Bug(
        "reading drops no weights",
        FILE,
        "drop(weights, dropout, dropout > 0)",
        "drop(weights, 0.0, dropout > 0)",
    ),
]
