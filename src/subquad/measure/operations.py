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
from subquad.measure.aten import SURVIVED, Tally, rule
from subquad.measure.module_tracker import ModuleTracker
from subquad.measure.published_counts import count_published
from subquad.measure.shapes import without_numbers
from subquad.ops.binary_codes import hearing
from subquad.utils.errors import UserError

log = logging.getLogger(__name__)

Convention = Literal["everything", "published"]


@dataclass(frozen=True, slots=True)
class Operations:
    """What each module did itself, its children left out, by the module's path; "" is the model."""

    modules: Mapping[str, Tally]
    operators: Mapping[str, Tally]
    """The same operations by operator of torch, or by kind of module under EcoFormer's convention."""
    unknown: frozenset[str] = frozenset()
    """Operators that were met and counted as 0, because what they cost is not known."""

    @property
    def total(self) -> Tally:
        """All of them."""
        return sum(self.modules.values(), Tally())

    def below(self, path: str) -> Tally:
        """Those of a module and of all modules in it."""
        inside = f"{path}." if path else ""
        return sum((t for name, t in self.modules.items() if name == path or name.startswith(inside)), Tally())


class OperationCounter(TorchDispatchMode):
    """Counts the operators that run inside the block, forward and backward, on tensors of any kind, fakes among them.

    Inside, torch's operators run in place of our kernels, so that fakes and numbers are counted alike.
    A product with a binary code (`ops.binary_codes`) takes no multiplications. Views and copies of a code are codes,
    and so is a code times one number for each vector along its last axis: that number can be multiplied after the sum.

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
        self._places = ModuleTracker()
        self._open = ExitStack()

    def __enter__(self) -> "OperationCounter":
        self._open.enter_context(self._places)
        self._open.enter_context(torchs_own())
        self._open.enter_context(hearing(lambda x: self._codes.add(x.untyped_storage())))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._open.close()
        if self._unknown:
            log.warning("Counted as 0, since their cost is not known: %s.", ", ".join(sorted(self._unknown)))

    @property
    def operations(self) -> Operations:
        """What was counted so far."""
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
        if not any(isinstance(t, Tensor) and _is_real(t) for t in tree_iter((args, kwargs, result))):
            tally = Tally(other=tally.mul + tally.add + tally.other)
        if tally != Tally():
            self._modules[self._places.path] += tally
            self._operators[name] += tally

    def _with_codes(self, name: str, tally: Tally, args: Any, result: Any) -> Tally:
        """What is left of the cost where arguments are codes; notes whether the result is one."""
        moved = name in SURVIVED and all(map(self._is_code, args[0] if isinstance(args[0], list) else args[:1]))
        codes = [place for place, part in enumerate(args) if self._is_code(part)]
        if not codes or name in SURVIVED:
            self._mark(result, moved)
            return tally
        stem = name.removesuffix("_")
        if stem == "mul" or (stem == "div" and codes[0] == 0):
            other = args[1 - codes[0]]
            scales = not isinstance(other, Tensor) or other.dim() == 0 or other.shape[-1] == 1
            self._mark(result, scales)
            return tally if scales or stem == "div" else Tally()  # changes of sign
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
"""Which arguments of a product are multiplied."""


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def count(
    model: nn.Module, inputs: tuple[Any, ...], convention: Convention = "everything", backward: bool = False
) -> Operations:
    """Operations of `model(*inputs)`; with `backward` those of the gradients of all parameters and inputs too.

    Nothing is computed: the model runs as a CPU would run it on tensors that have shapes but no numbers, so that size
    costs neither time nor memory, and weights and inputs may lie on the device "meta".

    convention: "everything" counts every operator (see `subquad.measure.aten`); "published" what EcoFormer's tables
        count (see `subquad.measure.published_counts`).

    Raises UserError at a mechanism that the published convention has no count for, and at its `backward`.
    """
    if convention == "published":
        if backward:
            raise UserError("EcoFormer's convention counts forward passes only; leave backward out.")
        with without_numbers(model, inputs) as fakes:
            return Operations(*count_published(model, fakes))
    if convention != "everything":
        raise UserError(f'There is no convention "{convention}"; choose everything or published.')
    with without_numbers(model, inputs, backward) as fakes, OperationCounter() as counter:
        with torch.set_grad_enabled(backward):
            outputs = [part for part in tree_iter(model(*fakes)) if isinstance(part, Tensor) and part.requires_grad]
        if backward:
            torch.autograd.backward(outputs, [torch.empty_like(part) for part in outputs])
    return counter.operations


def by_group(model: nn.Module, operations: Operations) -> dict[str, Tally]:
    """Operations of attentions, of feed-forward nets, of norms outside of both, and of the rest where there is one."""
    outer = {path: group for path, module in model.named_modules() if (group := _group(module))}
    groups: dict[str, Tally] = defaultdict(Tally)
    for path, tally in operations.modules.items():
        parts = path.split(".")
        above = [".".join(parts[: length + 1]) for length in range(len(parts))]
        groups[next((outer[name] for name in above if name in outer), "rest")] += tally
    return {group: groups[group] for group in ("attention", "feed-forward", "norms", "rest") if group in groups}


def _group(module: nn.Module) -> str | None:
    if isinstance(module, Attention | MultiHead | nn.MultiheadAttention):
        return "attention"
    if isinstance(module, FeedForward) or "mlp" in type(module).__name__.lower():  # timm has several
        return "feed-forward"
    return "norms" if "norm" in type(module).__name__.lower() else None
