"""torch.compile as training uses it."""

from torch import nn
from torch._functorch import config


def compile_network(network: nn.Module, backend: str = "inductor") -> None:
    """Compiles the module in place, with the gradients of the module as it was.

    What a mechanism computes outside of half precision (S4's kernel, DBA's sharpness) is differentiated outside of it
    without a compiler. With one it would be differentiated in half precision, unless this is said.
    """
    if hasattr(config, "backward_pass_autocast"):  # older versions of torch lack it
        config.backward_pass_autocast = "off"
    network.compile(backend=backend)
