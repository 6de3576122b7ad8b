"""Every attention leaves Python: safetensors, torch.jit.trace, torch.compile, torch.export and ONNX: equal outputs.

`pytest --attention my_package.module:MyClass` runs these tests too. What a class names in `cannot_export` must fail.
"""

from collections.abc import Callable, Iterable

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch._dynamo.exc import UserError as ExportError
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.testing import assert_close

from attention.cells import DIM, Cell, prefix
from subquad.attention.base import Attention
from subquad.specs import Pattern

LONGEST = 32
pytestmark = [
    pytest.mark.usefixtures("unchecked"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::torch.jit.TracerWarning"
    ),
]
Inputs = dict[str, Tensor]
Size = tuple[list[int], int]
EXAMPLE, SAME = ([16, 9, 4], 16), ([5, 16, 1], 16)
OTHERS = {
    "batch": (([7, 11], 16), ([16] * 7, 16)),
    "length": (([7, 11, 3], 11), ([20, 2, 1], 20), ([28, 2, 7], 28)),
}
"""Real tokens of each row and length, where one axis differs from the example. All lengths are below the longest."""
SHORT = ([2, 3, 3], 3)
"""A row is one window or segment, and programs of some mechanisms refuse it, because torch.export fixes sizes of 1, as
it does for a batch of 1."""


class Plain(nn.Module):
    """The attention without keyword arguments, which torch.jit.trace does not support."""

    def __init__(self, attention: Attention, names: Iterable[str]) -> None:
        super().__init__()
        self.attention, self.names = attention, tuple(names)

    def forward(self, *given: Tensor) -> Tensor:
        return self.attention(**dict(zip(self.names, given, strict=True)))


def built(cell: Cell) -> Attention:
    return cell.build(query_len=LONGEST, context_len=LONGEST).float().eval()


def inputs(attention: Attention, size: Size) -> Inputs:
    """Tokens and masks; in cross-attention, the context has two tokens more than the queries."""
    rows, length = size
    given = {"x": torch.randn(len(rows), length, DIM), "mask": prefix(rows, length)}
    if attention.site.pattern is Pattern.CROSS:
        tokens = [real + 1 for real in rows]
        given |= {"context": torch.randn(len(rows), length + 2, DIM), "context_mask": prefix(tokens, length + 2)}
    return given


def agree(given: Callable[..., Tensor], attention: Attention, *sizes: Size, atol: float = 1e-5) -> None:
    for size in sizes:
        tokens = inputs(attention, size)
        real = tokens["mask"]
        outputs = []
        for function in (given, attention):
            torch.manual_seed(1)
            outputs.append(function(**tokens)[real])
        assert_close(*outputs, rtol=1e-4, atol=atol)


def free(attention: Attention, *axes: str) -> dict[str, dict[int, object]]:
    """The dynamic shapes of an export in which these axes (batch, length) are not fixed."""
    numbers = [number for number, axis in enumerate(("batch", "length")) if axis in axes]
    return {name: dict.fromkeys(numbers, Dim.DYNAMIC) for name in inputs(attention, EXAMPLE)}


def supported(attention: Attention) -> list[str]:
    return [axis for axis in OTHERS if axis not in attention.cannot_export]


def exported(attention: Attention, *axes: str) -> Callable[..., Tensor]:
    given = inputs(attention, EXAMPLE)
    return torch.export.export(attention, (), given, dynamic_shapes=free(attention, *axes)).module()


def test_state_goes_through_safetensors(first_cell: Cell, tmp_path) -> None:
    attention, copy = built(first_cell), built(first_cell)
    save_model(attention, str(tmp_path / "a.safetensors"))  # state that layers share is stored once
    load_model(copy, str(tmp_path / "a.safetensors"))
    given = inputs(attention, EXAMPLE)
    assert torch.equal(copy(**given), attention(**given))


@torch.no_grad()
def test_a_trace_agrees(first_cell: Cell) -> None:
    attention = built(first_cell)
    given = inputs(attention, EXAMPLE)
    traced = torch.jit.trace(Plain(attention, given), tuple(given.values()), check_trace=False)
    agree(lambda **given: traced(*given.values()), attention, EXAMPLE, SAME)


@torch.no_grad()
@pytest.mark.parametrize("name", ["Softmax", "DBA", "CosFormer", "Luna"])
def test_kernels_step_aside_while_tracing(name: str) -> None:
    """At widths that the kernels of this package support."""
    import subquad

    attention = getattr(subquad, name)(dim=64, heads=4, max_len=64).eval()
    x, mask = torch.randn(2, 48, 64), prefix([48, 30], 48)
    traced = torch.jit.trace(Plain(attention, ("x", "mask")), (x, mask), check_trace=False)
    assert_close(traced(x.flip(0), mask)[mask], attention(x.flip(0), mask=mask)[mask], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@torch.no_grad()
def test_compiled_to_one_graph_of_any_size_it_agrees(first_cell: Cell) -> None:
    """In training; the graph only: test_inductor.py has the gradients of every choice, and generated code of some."""
    torch.compiler.reset()
    attention = built(first_cell).train()
    agree(torch.compile(attention, backend="eager", fullgraph=True, dynamic=True), attention, EXAMPLE, *OTHERS["batch"])


@pytest.mark.slow
@torch.no_grad()
def test_an_export_agrees_at_every_size_that_it_supports(first_cell: Cell) -> None:
    attention = built(first_cell)
    axes = supported(attention)
    program = exported(attention, *axes)
    agree(program, attention, EXAMPLE, SAME, *(size for axis in axes for size in OTHERS[axis]))
    if "length" in axes:
        try:
            agree(program, attention, SHORT)
        except AssertionError as error:  # torch's guard, never another output
            if "Guard failed" not in str(error):
                raise


@pytest.mark.slow
@torch.no_grad()
def test_an_axis_that_it_cannot_export_fails(first_cell: Cell) -> None:
    """When it is exported, or in the guards of the program; never by another output."""
    attention = built(first_cell)
    for axis in {*OTHERS} & attention.cannot_export:
        with pytest.raises(
            (ExportError, GuardOnDataDependentSymNode, AssertionError),
            match=r"(?s)Guard failed|[Cc]onstraints violated|data-dependent",
        ):
            agree(exported(attention, axis), attention, *OTHERS[axis], *([SHORT] if axis == "length" else []))


@pytest.mark.release
@torch.no_grad()
def test_onnx_agrees(first_cell: Cell, tmp_path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason='pip install -e ".[onnx]"')
    attention = built(first_cell)
    axes, given = supported(attention), inputs(attention, EXAMPLE)

    def program() -> torch.onnx.ONNXProgram:
        return torch.onnx.export(
            attention, (), kwargs=given, dynamo=True, dynamic_shapes=free(attention, *axes), verbose=False
        )

    if "onnx" in attention.cannot_export:
        with pytest.raises((torch.onnx.OnnxExporterError, RuntimeError)):
            program()
        return
    program().save(tmp_path / "a.onnx")
    session = runtime.InferenceSession(tmp_path / "a.onnx")
    names = [node.name for node in session.get_inputs()]

    def run(**given: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: given[name].numpy() for name in names})[0])

    agree(run, attention, EXAMPLE, SAME, *(size for axis in axes for size in OTHERS[axis]), atol=5e-4)
