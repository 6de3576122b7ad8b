"""CUDA's autocast rules on a CPU, whose own rules keep other operators in float32."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

HALF = (torch.float16, torch.bfloat16)
HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
"""The file in which torch lists the operators of each CUDA rule."""


@contextmanager
def rules_of_cuda() -> Iterator[None]:
    """Inside, `torch.autocast("cpu", ...)` computes everything in float32 that CUDA's autocast computes in float32."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for rule, kernel in (("FP32", _in_float32), ("FP32_SET_OPT_DTYPE", _to_float32)):
            for operator in _operators(rule):
                if not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "AutocastCPU"):
                    library.impl(operator, partial(kernel, operator), "AutocastCPU")
        yield
    finally:
        library._destroy()


def _operators(rule: str) -> list[Any]:
    """The operators of one list of the header."""
    [body] = re.findall(rf"#define AT_FORALL_{rule}\(_\)((?:.*\\\n)+.*)", HEADER.read_text(encoding="utf-8"))
    entries = re.findall(r"_\((\w+)(?:, (\w+))?\)", body)
    return [getattr(getattr(torch.ops.aten, name), overload or "default") for name, overload in entries]


def _in_float32(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    cast = tree_map_only(torch.Tensor, lambda x: x.float() if x.dtype in HALF else x, (args, kwargs))
    with torch.autocast("cpu", enabled=False):
        return operator(*cast[0], **cast[1])


def _to_float32(operator: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    if x.dtype in HALF and kwargs.get("dtype") is None:
        kwargs["dtype"] = torch.float32
    with torch.autocast("cpu", enabled=False):
        return operator(x, *args, **kwargs)
