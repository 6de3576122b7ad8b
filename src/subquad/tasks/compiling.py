"""torch.compile as training uses it."""

from torch import nn
from torch._functorch import config

from subquad.utils.errors import UserError


def compile_network(network: nn.Module, mode: bool | str = True, backend: str = "inductor") -> None:
    """Compiles the module in place, in a mode of inductor or the default one, with the gradients of the uncompiled one.

    Raises UserError for a mode that torch does not have.

    Some mechanisms compute part of their forward pass outside of autocast (S4's kernel, DBA's sharpness). Eager mode
    computes its gradients outside of autocast too, torch.compile by default in half precision.
    """
    if hasattr(config, "backward_pass_autocast"):  # older versions of torch lack it
        config.backward_pass_autocast = "off"
    if isinstance(mode, bool):
        network.compile(backend=backend)
        return
    from torch._inductor import list_mode_options  # slow to import

    if mode not in (modes := list_mode_options()):
        raise UserError(f"torch.compile has no mode {mode}; set compile_model to true, false or {', '.join(modes)}.")
    network.compile(backend=backend, mode=mode)
