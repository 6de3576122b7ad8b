"""What a GPU would be asked to do: kernel launches, bytes, a time estimate, peak memory, and what must not happen."""

import math
import sys
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

import subquad
from subquad.measure.memory import LiveTensors
from subquad.measure.shapes import fake_tensors
from subquad.utils.fixed_weights import fixed_weights

SOURCE = Path(subquad.__file__).parent
HALF = (torch.float16, torch.bfloat16)

BYTES_PER_SECOND = 2.6e12
"""Of an H100's memory."""
DISPATCH_SECONDS = {"inference": 5.7e-6, "training": 9.3e-6}
"""Of the host for one dispatched operator, views included, without autograd and with it: from models of 1,024 tokens,
whose time is the host's, on an H200 (2026-11-26; docs/measuring.md)."""
FLOPS = {"flash": (4e14, 2e13), "efficient": (1.8e14, 1.5e13), "flex": (4e14, 2e13), "other": (6e14, 4.5e13)}
"""Operations a second on an H100 in half and in single precision (without TF32) of the kinds of product."""


class Trace(LiveTensors):
    """Counts what runs on a CUDA device inside the block; `peak` is the largest number of live bytes.

    `launches` counts operators that run a kernel: views and allocations do not. `dispatches` counts all operators on
    the device. `seconds` is the larger of the card's time, the sum over launches of the longer of bytes over bandwidth
    and operations over peak speed, and of the host's, `dispatches` times the price of one, which is higher in
    `training`. Only these prices come from a measurement; the estimate is for comparing two ways to compute one thing.
    `findings` counts what should not happen on a GPU, with the line of the package at which it happened; `by_line`
    counts launches in the same way.

        with FakeTensorMode(), Trace() as trace:
            model(x).sum().backward()
    """

    current: ClassVar["Trace | None"] = None
    """The trace whose block is running."""

    def __init__(self, training: bool = False) -> None:
        super().__init__()
        self.dispatch_seconds = DISPATCH_SECONDS["training" if training else "inference"]
        self.launches = self.dispatches = self.bytes = 0
        self.card_seconds = 0.0
        self.by_line: Counter[str] = Counter()
        self.by_operator: Counter[str] = Counter()
        """Seconds of the card of each operator."""
        self.findings: Counter[str] = Counter()

    @property
    def seconds(self) -> float:
        """Estimated time of a pass."""
        return max(self.card_seconds, self.dispatches * self.dispatch_seconds)

    def __enter__(self) -> "Trace":
        super().__enter__()
        Trace.current = self
        return self

    def __exit__(self, *error: Any) -> None:
        Trace.current = None
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        if name in ("device", "sym_size", "sym_numel"):
            return func(*args, **kwargs)
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            self._find(f"host synchronisation: {name}")
            return self._guess(func, args, kwargs)
        inputs, outputs = ([t for t in tree_iter(part) if isinstance(t, Tensor)] for part in ((args, kwargs), result))
        self._look(name, inputs, outputs)
        on_device = any(t.is_cuda for t in outputs or inputs)
        self.dispatches += on_device
        if on_device and _runs_kernel(func, name, inputs, outputs):
            self._count(func, name, args, kwargs, inputs, outputs, result)
        return result

    def add(self, name: str, moved: float, flops: float, kind: str, half: bool) -> None:
        """Counts one launch that moves `moved` bytes and computes `flops` operations."""
        seconds = max(moved / BYTES_PER_SECOND, flops / FLOPS[kind][not half])
        self.launches += 1
        self.bytes += int(moved)
        self.card_seconds += seconds
        self.by_line[where()] += 1
        self.by_operator[name] += seconds

    def _count(self, func: Any, name: str, args: Any, kwargs: Any, inputs: Any, outputs: Any, result: Any) -> None:
        flops = 0
        if func.overloadpacket in flop_registry:
            flops = flop_registry[func.overloadpacket](*args, **kwargs, out_val=result)
        kind = next((kind for kind in ("flash", "efficient") if kind in name), "other")
        half = any(t.dtype in HALF for t in inputs)
        self.add(name, _moved(name, inputs, outputs), flops, kind, half)

    def _look(self, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Notes what makes the host wait, runs on the CPU, or is slow for a reason that can be removed."""
        devices = {t.device.type for t in (*inputs, *outputs) if t.device.type != "meta"}
        if name in ("_to_copy", "copy_") and len(devices) > 1:
            there, here = outputs[0].device.type, inputs[-1].device.type
            self._find(f"host synchronisation: copy from {here} to {there}")
        elif outputs and devices == {"cpu"}:
            self._find(f"operator on the CPU: {name}")
        if name == "lift_fresh" and outputs[0].is_cuda:
            self._find("host synchronisation: tensor made from Python numbers")
        if any(t.dtype in (torch.float64, torch.complex128) for t in outputs):
            self._find(f"double precision: {name}")
        if name == "_safe_softmax":  # only the math back end calls it
            self._find("math back end of scaled_dot_product_attention")
        if name == "_scaled_dot_product_cudnn_attention":  # the fake device chooses it only then
            self._find("cuDNN's attention with a mask in half precision, whose gradients may be NaN")

    def _find(self, what: str) -> None:
        self.findings[f"{what} ({where()})"] += 1

    def _guess(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A result where value or shape depend on the data: numbers are 1, and a mask selects a quarter."""
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 1
        if func is torch.ops.aten.equal.default:
            return True
        if func is torch.ops.aten.index.Tensor:
            return func(args[0], [part for index in args[1] for part in _as_numbers(index)])
        raise NotImplementedError(f"{func} needs a guess of its result here.")


DTYPES = {"32": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""By the name of the precision in `trainer.precision`."""


def traced(model: nn.Module, inputs: tuple[Any, ...], precision: str, train: bool) -> tuple[Trace, list[str]]:
    """A forward pass, in training also a backward pass. Returns also the parameters that got no gradient.

    Without a backward pass the weights are fixed, and the pass is the second one.
    """
    model.train(train)
    dtype = DTYPES[precision]

    def forward() -> Any:
        with torch.set_grad_enabled(train), torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            return model(*fakes)

    with fake_tensors(model, inputs, train, "cuda") as fakes, fixed_weights(), ExitStack() as stack:
        if not train:
            forward()
        trace = stack.enter_context(Trace(train))
        result = forward()
        if train:
            outputs = [t for t in tree_iter(result) if isinstance(t, Tensor) and t.requires_grad]
            torch.autograd.backward(outputs, [torch.empty_like(t) for t in outputs])
        without = [name for name, p in model.named_parameters() if train and p.requires_grad and p.grad is None]
    return trace, without


def where(error: BaseException | None = None) -> str:
    """The innermost line of the package that is running, or that raised; in the backward pass there is none."""
    frame: Any = sys._getframe()
    lines = []
    if error is not None:
        lines = [(f.f_code.co_filename, number) for f, number in traceback.walk_tb(error.__traceback__)][::-1]
    else:
        while frame is not None:
            lines.append((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
    found = (f"{Path(file).relative_to(SOURCE)}:{line}" for file, line in lines if file.startswith(str(SOURCE)))
    return next((place for place in found if not place.startswith("measure/")), "backward pass")


def _runs_kernel(func: Any, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    """Whether an operator computes: its result is no view of an input, and not just allocated."""
    if name.removeprefix("new_").startswith("empty"):
        return False
    if func._schema.is_mutable:
        return True
    held = {t.untyped_storage()._cdata for t in inputs}
    return any(t.untyped_storage()._cdata not in held for t in outputs)


def _moved(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Bytes that an operator reads and writes. Of a table that it looks up, only the rows that it takes."""
    stem = name.rstrip("_")
    if stem in ("index", "index_select", "gather", "embedding", "take_along_dim"):
        return 2 * sum(map(_bytes, outputs)) + sum(map(_bytes, inputs[1:]))
    if name in ("index_add_", "index_put_", "_index_put_impl_", "scatter_", "scatter_add_", "index_copy_"):
        return sum(map(_bytes, inputs[1:])) + 2 * max(map(_bytes, inputs[1:]), default=0)
    if name in ("copy_", "fill_", "zero_"):
        return _bytes(outputs[0]) + sum(map(_bytes, inputs[1:]))
    return sum(map(_bytes, (*inputs, *outputs)))


def moved_by(*tensors: Tensor) -> int:
    """Bytes of tensors that are read or written once."""
    return sum(map(_bytes, tensors))


def _bytes(tensor: Tensor) -> int:
    """Bytes of the elements that are stored; an expanded axis is stored once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in sizes if stride) * tensor.element_size()


def _as_numbers(index: Tensor | None) -> list[Tensor | None]:
    if index is None or index.dtype != torch.bool:
        return [index]
    return [index.new_zeros(index.numel() // 4, dtype=torch.long) for _ in index.shape]
