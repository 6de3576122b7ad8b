"""Memory of a computation: live tensors on a CPU, the allocator's peak on a GPU."""

import gc
import os
import resource
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of tensor storage made inside the block and still alive; `peak` is the largest count.

    Deterministic: the same program gives the same number on every run and machine. Storage that existed before (the
    parameters, the input) and scratch memory inside one operator are not counted.

        with LiveTensors() as memory:
            model(x)
        memory.peak  # bytes
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known: set[int] = set()

    def __enter__(self) -> "LiveTensors":
        gc.collect()
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_iter((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor, new=False)
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor, new=True)
        return result

    def _note(self, tensor: torch.Tensor, new: bool) -> None:
        if tensor.layout is not torch.strided:  # a sparse tensor is made of dense ones, counted already
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return
        self.known.add(key)
        size = storage.nbytes() if new else 0
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self.live -= size
        self.known.discard(key)


def reset_peak(device: torch.device) -> None:
    """Makes `process_peak` count from here, as far as the system allows."""
    if device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def process_peak(device: torch.device) -> dict[str, float | str]:
    """Largest memory of this process so far, in MiB, and what was measured: on a GPU the tensors of that GPU."""
    if device.type == "cuda":
        return {"peak_memory_mib": torch.cuda.max_memory_allocated(device) / 2**20, "peak_memory_of": "CUDA tensors"}
    return {"peak_memory_mib": _resident_peak(), "peak_memory_of": "resident set"}


def _resident_peak() -> float:
    """In MiB. `ru_maxrss` of Linux would begin with that of the process that started this one."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**10
    per_mib = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / per_mib


def total_memory(device: str) -> int:
    """Total memory of this machine, or of its GPU, in bytes."""
    if device != "cpu":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
