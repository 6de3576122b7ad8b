"""Which module runs: in a forward pass, and in the backward pass of what it did."""

import bisect
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModuleTracker:
    """Inside the block, `path` is that of the innermost module that runs, seen from the outermost; "" is that one.

    Torch numbers the nodes of its graph as they are made. A node that runs backward belongs to the module that ran when
    its number was given out. (torch.utils.module_tracker hooks tensors instead, and fails where a module's outputs
    take no part in the result.)
    """

    def __init__(self) -> None:
        self._paths: dict[nn.Module, str] = {}
        self._running: list[str] = []
        self._numbers, self._since = [0], [""]

    def __enter__(self) -> "ModuleTracker":
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        return self

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def path(self) -> str:
        """Of the module that runs now, forward or backward."""
        node = torch._C._current_autograd_node()
        if node is None:
            return self._since[-1]
        return self._since[bisect.bisect_right(self._numbers, node._sequence_nr()) - 1]

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self._running:
            self._paths = {part: path for path, part in module.named_modules()}
        above = self._running[-1] if self._running else ""
        self._running.append(self._paths.get(module, above))
        self._turn(self._running[-1])

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running.pop()
        self._turn(self._running[-1] if self._running else "")

    def _turn(self, path: str) -> None:
        self._numbers.append(torch.autograd._get_sequence_nr())
        self._since.append(path)
