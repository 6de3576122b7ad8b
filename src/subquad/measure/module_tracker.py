"""Finds the module that is running, in forward and backward passes."""

import bisect
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModuleTracker:
    """Inside the block, `path` is the path of the innermost running module within the outermost, which is "".

    Autograd numbers the nodes of its graph in the order of their creation. In a backward pass, a node belongs to the
    module that was running when the node was created. (torch.utils.module_tracker hooks tensors instead, and fails if
    the result does not depend on a module's outputs.)
    """

    def __init__(self) -> None:
        self._paths: dict[nn.Module, str] = {}
        self._running: list[str] = []
        # From node _numbers[i] on, the module at _entered[i] was running.
        self._numbers, self._entered = [0], [""]

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
        """Path of the module that is running, forward or backward."""
        node = torch._C._current_autograd_node()
        if node is None:
            return self._entered[-1]
        return self._entered[bisect.bisect_right(self._numbers, node._sequence_nr()) - 1]

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self._running:
            self._paths = {part: path for path, part in module.named_modules()}
        above = self._running[-1] if self._running else ""
        self._running.append(self._paths.get(module, above))
        self._switch(self._running[-1])

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running.pop()
        self._switch(self._running[-1] if self._running else "")

    def _switch(self, path: str) -> None:
        self._numbers.append(torch.autograd._get_sequence_nr())
        self._entered.append(path)
