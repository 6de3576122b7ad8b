"""Peak memory of training steps and evaluations, by a trace on fake tensors: nothing is allocated.

A step on a GPU is traced without a GPU, with CUDA's formulations; a step on a CPU with those of a CPU, including the
package's own kernels.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import fields
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from subquad.attention.base import Redrawn, Refreshable
from subquad.backbones.layerwise import recomputed
from subquad.kernels.operands import shapes_only
from subquad.measure.cuda_autocast import rules_of_cuda
from subquad.measure.inputs import HIDDEN, random_batch
from subquad.measure.memory import LiveTensors
from subquad.measure.shapes import fake_tensors
from subquad.utils.devices import as_on_a_gpu
from subquad.utils.display import counted
from subquad.utils.errors import UserError, first_line

USABLE = 0.85
"""Share of a memory that a trace may take; libraries, fragments and the context of CUDA take the rest."""


def step_peak(
    module: Any, spec: Any, rows: int, precision: str, states: int, whole: int | None = None, device: str = "cuda",
    again: bool = False,
) -> int:  # fmt: skip
    """Peak bytes of a training step of `rows` rows at full length and without padding.

    They are the weights and buffers, the gradients, the optimiser's states, and the peak of what a forward and a
    backward pass add; on a CPU also two batches, of which one is being loaded. Not counted are workspaces of libraries
    and copies for other processes. On a GPU softmax attention counts as fused, patterns that flex attention serves as
    on a CPU.

    Args:
        module: a task's module, on any device; its weights are not read.
        precision: Lightning's name; mixed precision keeps in float32 what it keeps on the device.
        states: number of values that the optimiser stores for each parameter.
        whole: rows of the batch of an optimiser step, to which mechanisms are fitted; by default `rows`.
        device: "cuda" or "cpu".
        again: whether layers are recomputed in the backward pass.
    """
    layers = recomputed(module.network, _WithoutValues if device == "cpu" else _Cuda) if again else nullcontext()
    with layers, _in_mode(module, training=True), _traced(module, precision, device, gradients=True):
        batch = random_batch(module.network, spec, rows)
        added = _added(module, batch)
        if any(isinstance(part, Refreshable) and not isinstance(part, Redrawn) for part in module.modules()):
            every = random_batch(module.network, spec, whole or rows)
            added = max(added, _without_gradients(lambda: module(every)))
    return _fixed(module, states) + added + (2 * _size_of(batch) if device == "cpu" else 0)


def evaluation_peak(
    module: Any, spec: Any, rows: int, precision: str, device: str = "cuda", states: int | None = None
) -> int:
    """Peak bytes of an evaluation of `rows` rows at full length and without padding; arguments as for `step_peak`.

    Args:
        states: of the optimiser of a run that is evaluated while it trains, whose gradients stay too; None without a
            training.
    """
    with _in_mode(module, training=False), _traced(module, precision, device, gradients=False):
        batch = random_batch(module.network, spec, rows)
        added = _without_gradients(lambda: module.loss(module(batch), module.targets(batch)))
    fixed = sum(map(_size, (*module.parameters(), *module.buffers()))) if states is None else _fixed(module, states)
    return fixed + added + (2 * _size_of(batch) if device == "cpu" else 0)


def real_peak(module: Any, spec: Any, rows: int, precision: str, device: str) -> int:
    """What `step_peak` estimates without an optimiser, of a real step on random data; adds nothing to the gradients.

    On a CPU it counts live tensors.
    """
    half = torch.bfloat16 if "bf16" in precision else torch.float16
    batch = random_batch(module.network, spec, rows).to(device)
    module.train()
    with torch.autocast(device, half, enabled="mixed" in precision):
        if device == "cpu":
            peak = _fixed(module, 0) + _added(module, batch)
        else:
            torch.cuda.reset_peak_memory_stats(device)
            _added(module, batch)
            peak = torch.cuda.max_memory_allocated(device)
    module.zero_grad(set_to_none=True)
    return peak


@contextmanager
def _in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Sets a module to training or evaluation inside the block."""
    before = {part: part.training for part in module.modules()}
    module.train(training)
    try:
        yield
    finally:
        for part, own in before.items():
            part.training = own


@contextmanager
def _traced(module: nn.Module, precision: str, device: str, gradients: bool) -> Iterator[None]:
    """The weights of a module as fake tensors, which are computed with as on a device."""
    like = like_a_cpu if device == "cpu" else like_a_gpu
    with fake_tensors(module, (), gradients), like(precision):
        yield


def _fixed(module: nn.Module, states: int) -> int:
    """Bytes of weights, buffers, gradients and the optimiser's states."""
    trained = sum(_size(p) for p in module.parameters() if p.requires_grad)
    return sum(map(_size, (*module.parameters(), *module.buffers()))) + (1 + states) * trained


def _added(module: Any, batch: Any) -> int:
    """Bytes that a forward and a backward pass add at their peak, where gradients exist already."""
    for p in module.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    with LiveTensors() as memory:
        module.loss(module(batch), module.targets(batch)).backward()
    return memory.peak


def _without_gradients(compute: Callable[[], Any]) -> int:
    """Bytes that a computation without gradients adds at its peak."""
    with torch.no_grad(), LiveTensors() as memory:
        compute()
    return memory.peak


def cheapest(
    peak: Callable[[bool, int], int], batch: int, memory: int, divisible: Callable[[], bool], again: bool = False
) -> tuple[bool, int] | None:
    """The first way of a training step that fits: as set, layers recomputed, the fewest microbatches, both.

    Microbatches are equal and have two rows or more.

    Args:
        peak: peak bytes of a step, by whether layers are recomputed and by the number of microbatches.
        batch: rows of a step of one process, which microbatches divide.
        memory: bytes that there are, of which USABLE are used.
        divisible: returns whether the batch may be divided.
        again: whether layers are recomputed in any case.

    Returns:
        Whether layers are recomputed, and the number of microbatches; None if nothing fits.
    """
    divisors = [count for count in range(2, batch // 2 + 1) if batch % count == 0]

    def fits(again: bool, count: int) -> bool:
        return peak(again, count) <= USABLE * memory

    for counts in ([1], divisors):
        if counts == divisors and not divisible():
            break
        for way in sorted({again, True}):
            place = bisect_left(counts, True, key=partial(fits, way))
            if place < len(counts):
                return way, counts[place]
    return None


def in_words(again: bool, count: int, rows: int) -> str:
    """What a step does: whether it recomputes layers, and its microbatches of so many rows; empty if neither."""
    done = ["recomputes its layers"] * again + [f"{count} microbatches of {counted(rows, 'row')}"] * (count > 1)
    return " and ".join(done)


def sees_whole_batch(module: nn.Module) -> bool:
    """Whether a model takes statistics of its batch, so that microbatches would train another model."""
    return any(isinstance(part, _BatchNorm) for part in module.modules())


def states_of(make_optimizer: Callable[[Any], torch.optim.Optimizer]) -> int:
    """Number of values that an optimiser stores for each parameter, found by running one step."""
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    optimizer = make_optimizer([parameter])
    try:
        optimizer.step(lambda: 0.0)  # some optimisers require a closure
    except (ArithmeticError, ValueError) as error:
        raise UserError(
            f"The optimiser cannot take a step ({first_line(error)}); choose other values of optimizer."
        ) from None
    stored = (value for state in optimizer.state.values() for value in state.values() if getattr(value, "ndim", 0))
    return sum(value.numel() for value in stored) // parameter.numel()


def _size_of(batch: Any) -> int:
    """Bytes of the tensors of a batch."""
    return sum(
        _size(getattr(batch, field.name)) for field in fields(batch) if isinstance(getattr(batch, field.name), Tensor)
    )


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@contextmanager
def like_a_gpu(precision: str) -> Iterator[None]:
    """The formulations of a GPU, CUDA's rules of mixed precision, and no compiled code, on fake CPU tensors."""
    with ExitStack() as stack:
        stack.enter_context(as_on_a_gpu())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_Cuda())
        if "mixed" in precision:
            stack.enter_context(rules_of_cuda())
            stack.enter_context(torch.autocast("cpu", torch.bfloat16 if "bf16" in precision else torch.float16))
        yield


@contextmanager
def like_a_cpu(precision: str) -> Iterator[None]:
    """What a CPU allocates, without compiled code, on fake CPU tensors; the package's kernels compute nothing."""
    with ExitStack() as stack:
        stack.enter_context(shapes_only(FakeTensor))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_WithoutValues())
        if "mixed" in precision:
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))  # Lightning also in place of float16
        yield


class _WithoutValues(TorchFunctionMode):
    """Replaces functions whose result depends on values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor) and args[1].dtype == torch.bool:
            x, chosen = args  # hidden tokens, whose share `random_batch` determines
            return x.flatten(0, chosen.ndim - 1)[: max(1, round(HIDDEN * chosen.numel()))].clone()
        return func(*args, **(kwargs or {}))


class _Cuda(_WithoutValues):
    """Also replaces functions that torch computes with other memory on a CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _fused_attention(*args, **kwargs)
        if func is F.dropout:
            return _dropout(*args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if training and p else x


def _fused_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))
    y: Tensor = _FusedAttention.apply(query, key, value, attn_mask)
    return y


class _FusedAttention(torch.autograd.Function):
    """The tensors that torch's fused kernels allocate on CUDA, without values.

    The forward pass makes the output and the float32 logarithms of the sums, the backward pass the gradients, that of
    the mask if it is learned, and in half precision float32 sums of the gradient of the queries.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        *rows, heads, tokens = q.shape[:-1]
        y = q.new_empty(*rows, tokens, heads, v.shape[-1]).transpose(-3, -2)  # as the kernels lay it out
        ctx.save_for_backward(q, k, v, mask, y, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, *_ = ctx.saved_tensors
        sums = None if q.dtype == torch.float32 else q.new_empty(q.shape, dtype=torch.float32)
        result = *(torch.empty_like(x) for x in (q, k, v)), torch.empty_like(mask) if ctx.needs_input_grad[3] else None
        del sums
        return result
