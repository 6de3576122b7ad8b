"""torch.compile as training uses it."""

from torch import nn
from torch._functorch import config


def compile_network(network: nn.Module, backend: str = "inductor") -> None:
    """Compiles the module in place, with the same gradients as the uncompiled module.

    Some mechanisms compute part of their forward pass outside of autocast (S4's kernel, DBA's sharpness). Eager mode
    computes its gradients outside of autocast too, torch.compile by default in half precision.
    """
    if hasattr(config, "backward_pass_autocast"):  # older versions of torch lack it
        config.backward_pass_autocast = "off"
    network.compile(backend=backend)
