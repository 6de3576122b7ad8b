"""Planted bugs of the products that linear attention and Flowformer share."""

from planted import Bug

BUGS = [
    Bug(
        "bias of the values counted once for all keys",
        "ops/kernel_attention.py",
        "k.sum(1)[..., None] * value.bias",
        "k.mean(1)[..., None] * value.bias",
    ),
    Bug(
        "output bias lost where W_O acts on states", "ops/kernel_attention.py", "torch.baddbmm(out.bias, ", "torch.bmm("
    ),
    Bug(
        "heads of W_O exchanged with its columns",
        "ops/kernel_attention.py",
        "out.weight.view(-1, heads, state.shape[-1]).permute(1, 2, 0)",
        "out.weight.view(heads, state.shape[-1], -1)",
    ),
    Bug("heads read the sums of one head", "ops/kernel_attention.py", "vector[:, None]", "vector[:, None, :1]"),
]
