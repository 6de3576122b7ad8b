"""Every attention leaves Python: state in safetensors, torch.jit.trace, torch.export and ONNX give equal outputs."""

from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.export import Dim
from torch.testing import assert_close

from attention.cells import DIM, Cell, prefix
from subquad.attention.base import Attention
from subquad.specs import Pattern

LONGEST = 32
SIZES = {"x": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, "mask": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}}
pytestmark = [
    pytest.mark.usefixtures("unchecked"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::torch.jit.TracerWarning"
    ),
]


class Plain(nn.Module):
    """The attention without keyword arguments, which torch.jit.trace does not support."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.attention(x, mask=mask)


def built(cell: Cell) -> Attention:
    if cell.pattern is Pattern.CROSS:
        cell = Cell(cell.factory, Pattern.SELF)
    return cell.build(query_len=LONGEST, context_len=LONGEST).float().eval()


def inputs(rows: list[int], length: int) -> tuple[Tensor, Tensor]:
    return torch.randn(len(rows), length, DIM), prefix(rows, length)


EXAMPLE, SAME, OTHERS = ([16, 9, 4], 16), ([5, 16, 1], 16), (([7, 11], 11), ([2, 20], 20))
EXTREMES = ([30, 2], 30), ([2, 3], 3)


def agree(
    given: Callable[..., Tensor], attention: Attention, *sizes: tuple[list[int], int], atol: float = 1e-5
) -> None:
    for size in sizes:
        x, mask = inputs(*size)
        assert_close(given(x, mask)[mask], attention(x, mask=mask)[mask], rtol=1e-4, atol=atol)


def test_state_goes_through_safetensors(first_cell: Cell, tmp_path) -> None:
    attention, copy = built(first_cell), built(first_cell)
    save_model(attention, str(tmp_path / "a.safetensors"))  # state that layers share is stored once
    load_model(copy, str(tmp_path / "a.safetensors"))
    x, mask = inputs(*EXAMPLE)
    assert torch.equal(copy(x, mask=mask), attention(x, mask=mask))


@torch.no_grad()
def test_a_trace_agrees(first_cell: Cell) -> None:
    attention = built(first_cell)
    agree(torch.jit.trace(Plain(attention), inputs(*EXAMPLE), check_trace=False), attention, EXAMPLE, SAME)


@torch.no_grad()
@pytest.mark.parametrize("name", ["Softmax", "DBA", "CosFormer", "Luna"])
def test_kernels_step_aside_while_tracing(name: str) -> None:
    """At widths that the kernels of this package support."""
    import subquad

    attention = getattr(subquad, name)(dim=64, heads=4, max_len=64).eval()
    x, mask = torch.randn(2, 48, 64), prefix([48, 30], 48)
    traced = torch.jit.trace(Plain(attention), (x, mask), check_trace=False)
    assert_close(traced(x.flip(0), mask)[mask], attention(x.flip(0), mask=mask)[mask], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@torch.no_grad()
def test_an_export_agrees_at_every_size_or_says_that_it_does_not(first_cell: Cell) -> None:
    attention = built(first_cell)
    x, mask = inputs(*EXAMPLE)

    def exported(sizes) -> Callable[..., Tensor]:
        program = torch.export.export(attention, (x,), {"mask": mask}, dynamic_shapes=sizes).module()
        return lambda x, mask: program(x, mask=mask)

    if attention.exports_any_size:
        agree(exported(SIZES), attention, EXAMPLE, SAME, *OTHERS)
        return
    agree(exported(None), attention, EXAMPLE, SAME)
    with pytest.raises(Exception, match=r"(?s)Guard failed|[Cc]onstraints violated|Error"):
        agree(exported(SIZES), attention, *OTHERS, *EXTREMES)


@pytest.mark.release
@torch.no_grad()
def test_onnx_agrees(first_cell: Cell, tmp_path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason='pip install -e ".[onnx]"')
    attention = built(first_cell)
    x, mask = inputs(*EXAMPLE)
    sizes = SIZES if attention.exports_any_size else None
    if not attention.exports_to_onnx:
        with pytest.raises((torch.onnx.OnnxExporterError, RuntimeError)):
            torch.onnx.export(attention, (x,), kwargs={"mask": mask}, dynamo=True, dynamic_shapes=sizes, verbose=False)
        return
    program = torch.onnx.export(
        attention, (x,), kwargs={"mask": mask}, dynamo=True, dynamic_shapes=sizes, verbose=False
    )
    program.save(tmp_path / "a.onnx")
    session = runtime.InferenceSession(tmp_path / "a.onnx")
    names = [given.name for given in session.get_inputs()]

    def run(x: Tensor, mask: Tensor) -> Tensor:
        given = dict(zip(("x", "mask"), (x.numpy(), mask.numpy()), strict=True))
        return torch.from_numpy(session.run(None, {name: given[name] for name in names})[0])

    agree(run, attention, EXAMPLE, SAME, *(OTHERS if attention.exports_any_size else ()), atol=5e-4)
