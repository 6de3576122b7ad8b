"""Operations of a computation: multiplications, additions and others, of every operator that runs."""

import logging
import weakref
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from subquad.attention.base import Attention
from subquad.blocks.layer import FeedForward
from subquad.blocks.multihead import MultiHead
from subquad.kernels.build import torchs_own
from subquad.measure.aten import CODE_PRESERVING, Tally, rule
from subquad.measure.module_tracker import ModuleTracker
from subquad.measure.published_counts import count_published
from subquad.measure.shapes import fake_tensors
from subquad.ops.binary_codes import observe_codes
from subquad.utils.errors import UserError

log = logging.getLogger(__name__)

Convention = Literal["everything", "published"]


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations by the module's path, without those of its children; "" is the model."""

    modules: Mapping[str, Tally]
    operators: Mapping[str, Tally]
    """The same operations by PyTorch operator, or by class of module under EcoFormer's convention."""
    unknown: frozenset[str] = frozenset()
    """Operators without a known cost, which are counted as 0."""

    @property
    def total(self) -> Tally:
        """The sum over all modules."""
        return sum(self.modules.values(), Tally())

    def below(self, path: str) -> Tally:
        """Operations of a module and of all modules in it."""
        inside = f"{path}." if path else ""
        return sum((t for name, t in self.modules.items() if name == path or name.startswith(inside)), Tally())


class OperationCounter(TorchDispatchMode):
    """Counts the operators that run inside the block, forward and backward, on real and fake tensors.

    Inside the block, PyTorch operators replace the package's kernels, so that real and fake tensors give equal counts.
    A product with a binary code (`ops.binary_codes`) takes no multiplications. Views and copies of a code are codes,
    and so is a code times one number for each vector along its last axis: that factor can be applied after the sum.

        with OperationCounter() as counter:
            model(x)
        counter.operations.total
    """

    def __init__(self) -> None:
        super().__init__()
        self._modules: dict[str, Tally] = defaultdict(Tally)
        self._operators: dict[str, Tally] = defaultdict(Tally)
        self._unknown: Counter[str] = Counter()
        self._codes: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._tracker = ModuleTracker()
        self._contexts = ExitStack()

    def __enter__(self) -> "OperationCounter":
        self._contexts.enter_context(self._tracker)
        self._contexts.enter_context(torchs_own())
        self._contexts.enter_context(observe_codes(lambda x: self._codes.add(x.untyped_storage())))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._contexts.close()
        if self._unknown:
            log.warning("Counted as 0, since their cost is not known: %s.", ", ".join(sorted(self._unknown)))

    @property
    def operations(self) -> Operations:
        """The operations counted so far."""
        return Operations(dict(self._modules), dict(self._operators), frozenset(self._unknown))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if any(isinstance(part, Tensor) for part in tree_iter(result)):
            self._count(str(func.overloadpacket.__name__), args, kwargs, result)
        return result

    def _count(self, name: str, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        cost = rule(name)
        if cost is None:
            self._unknown[name] += 1
            return
        tally = self._with_codes(name, cost(args, kwargs, result), args, result)
        tensors = [part for part in tree_iter((args, kwargs, result)) if isinstance(part, Tensor)]
        if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
            tally = Tally(other=tally.mul + tally.add + tally.other)
        if tally != Tally():
            self._modules[self._tracker.path] += tally
            self._operators[name] += tally

    def _with_codes(self, name: str, tally: Tally, args: Any, result: Any) -> Tally:
        """The cost without the multiplications that codes save; marks whether the result is a code."""
        preserved = name in CODE_PRESERVING and all(
            map(self._is_code, args[0] if isinstance(args[0], list) else args[:1])
        )
        codes = [index for index, argument in enumerate(args) if self._is_code(argument)]
        if not codes or name in CODE_PRESERVING:
            self._mark(result, preserved)
            return tally
        stem = name.removesuffix("_")
        if stem == "mul" or (stem == "div" and codes[0] == 0):
            other = args[1 - codes[0]]
            scales = not isinstance(other, Tensor) or other.dim() == 0 or other.shape[-1] == 1
            self._mark(result, scales)
            return tally if scales or stem == "div" else Tally()  # multiplying by ±1 only changes signs
        self._mark(result, False)
        factors = _FACTORS.get(stem, ())
        return Tally(add=tally.add, other=tally.other) if set(factors) & set(codes) else tally

    def _is_code(self, part: Any) -> bool:
        return isinstance(part, Tensor) and part.layout is torch.strided and part.untyped_storage() in self._codes

    def _mark(self, result: Any, code: bool) -> None:
        for part in tree_iter(result):
            if isinstance(part, Tensor) and part.layout is torch.strided:
                change = self._codes.add if code else self._codes.discard
                change(part.untyped_storage())


_FACTORS = {
    **dict.fromkeys(["mm", "bmm", "mv", "dot", "linear", "_linear_pointwise", "matmul"], (0, 1)),
    **dict.fromkeys(["addmm", "baddbmm", "addmv"], (1, 2)),
}
"""Indices of the arguments that a product multiplies."""


def count(
    model: nn.Module, inputs: tuple[Any, ...], convention: Convention = "everything", backward: bool = False
) -> Operations:
    """Operations of `model(*inputs)`; with `backward` also those of the backward pass to all parameters and inputs.

    Nothing is computed: the model runs on fake CPU tensors, which have shapes but no data, so that size costs neither
    time nor memory. Weights and inputs may be on the device "meta".

    convention: "everything" counts every operator (see `subquad.measure.aten`); "published" what EcoFormer's tables
        count (see `subquad.measure.published_counts`).

    Raises UserError for "published" with `backward`, or with a mechanism that has no published count.
    """
    if convention == "published":
        if backward:
            raise UserError("EcoFormer's convention counts forward passes only; leave backward out.")
        with fake_tensors(model, inputs) as fakes:
            return Operations(*count_published(model, fakes))
    if convention != "everything":
        raise UserError(f'There is no convention "{convention}"; choose everything or published.')
    with fake_tensors(model, inputs, backward) as fakes, OperationCounter() as counter:
        with torch.set_grad_enabled(backward):
            outputs = [part for part in tree_iter(model(*fakes)) if isinstance(part, Tensor) and part.requires_grad]
        if backward:
            torch.autograd.backward(outputs, [torch.empty_like(part) for part in outputs])
    return counter.operations


def by_group(model: nn.Module, operations: Operations) -> dict[str, Tally]:
    """Operations of attentions, feed-forward nets, norms outside both, and the rest; absent groups are left out."""
    group_at = {path: group for path, module in model.named_modules() if (group := _group(module))}
    groups: dict[str, Tally] = defaultdict(Tally)
    for path, tally in operations.modules.items():
        parts = path.split(".")
        above = [".".join(parts[: length + 1]) for length in range(len(parts))]
        groups[next((group_at[name] for name in above if name in group_at), "rest")] += tally
    return {group: groups[group] for group in ("attention", "feed-forward", "norms", "rest") if group in groups}


def _group(module: nn.Module) -> str | None:
    if isinstance(module, Attention | MultiHead | nn.MultiheadAttention):
        return "attention"
    if isinstance(module, FeedForward) or "mlp" in type(module).__name__.lower():  # timm has several
        return "feed-forward"
    return "norms" if "norm" in type(module).__name__.lower() else None
