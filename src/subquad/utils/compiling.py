"""torch.compile as training uses it."""

from typing import Any

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
    _options(mode)
    network.compile(backend=backend, mode=mode)


def check_microbatches(mode: bool | str, count: int) -> None:
    """Raises UserError for a mode with CUDA graphs and several microbatches.

    The first microbatch leaves its gradients in the memory of a graph, where the graph of the next one writes
    (https://github.com/pytorch/pytorch/issues/169545).
    """
    if count > 1 and isinstance(mode, str) and _options(mode).get("triton.cudagraphs"):
        raise UserError(
            f"compile_model={mode} uses CUDA graphs, which overwrite the gradients of earlier microbatches; set "
            "trainer.accumulate_grad_batches=1, or compile_model=true or max-autotune-no-cudagraphs."
        )


def _options(mode: str) -> dict[str, Any]:
    """The options of a mode of torch.compile; raises UserError for a mode that torch does not have."""
    from torch._inductor import list_mode_options  # slow to import

    if mode not in (modes := list_mode_options()):
        raise UserError(f"torch.compile has no mode {mode}; set compile_model to true, false or {', '.join(modes)}.")
    return modes[mode]
