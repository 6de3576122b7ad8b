"""Speed and memory of attention layers and of whole models, against softmax and against no attention at all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subquad.attention.base import AttentionFactory, Projections, StatelessAttention
from subquad.backbones.encoder import is_standalone, sized
from subquad.backbones.sequence import SequenceEncoder
from subquad.measure.growth import NO_ATTENTION
from subquad.measure.matrix_products import products_of
from subquad.measure.memory import LiveTensors
from subquad.measure.timing import Timing, interleave
from subquad.ops.heads import split_heads
from subquad.specs import Context, DataSpec, Masks, Pattern, Site, Tokens
from subquad.utils.compiling import compile_network
from subquad.utils.devices import Float32Precision, torch_settings
from subquad.utils.errors import UserError
from subquad.utils.fixed_weights import Products, fixed_weights

Level = Literal["layer", "model"]
Mode = Literal["inference", "training"]
PRODUCTS_ALONE = "products alone"


class PlainSoftmax(StatelessAttention):
    """Four `nn.Linear` and torch's fused kernel: the layer that the public implementations were measured against."""

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n² d), memory O(n d)"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.query, self.key, self.value, self.out = (nn.Linear(site.dim, site.dim) for _ in range(4))

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        q, k, v = (
            split_heads(part, self.site.heads) for part in (self.query(x), self.key(context), self.value(context))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class FourMaps(StatelessAttention):
    """The four projections and nothing between them: a lower bound for every layer that has them."""

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n d²), memory O(n d)"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p = self.projections
        return p.out(p.query(x) + p.key(context) + p.value(context))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Sizes of the layer or model to measure, and its input."""

    level: Level
    mode: Mode
    length: int
    dim: int = 256
    heads: int = 4
    ffn: int = 1024
    layers: int = 4
    batch: int = 1
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    compiled: bool | str = False
    precision: Float32Precision = "highest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Time of each round and the peak of live tensors, in bytes, of one attention in one setting."""

    timing: Timing
    peak: int


def measure(
    attentions: Mapping[str, AttentionFactory], setting: Setting, rounds: int, alone: str | None = None,
    partial: bool = False,
) -> dict[str, Measured]:  # fmt: skip
    """Measures all attentions in turn, and at level "model" also a model without attention.

    `alone` names an attention whose matrix products alone are measured too, as PRODUCTS_ALONE. With `partial`, what
    does not fit into memory is left out; otherwise the error is raised.
    """
    sides: dict[str, AttentionFactory | None] = dict(attentions)
    if setting.level == "model":
        sides[NO_ATTENTION] = None
    if setting.compiled:
        torch.compiler.reset()  # torch recompiles a function a few times only, and measurements share functions
    runs = {name: program_of(factory, setting) for name, factory in sides.items()}
    if alone is not None:
        runs[PRODUCTS_ALONE] = products_of(runs[alone])
    if partial:
        with torch_settings(setting.precision):
            for name in list(runs):
                if not _fits(runs[name]):
                    del runs[name]
    timings = interleave(runs, rounds, 0 if partial else 2, setting.precision)
    return {name: Measured(timing=timings[name], peak=peak_of(run, setting.device)) for name, run in runs.items()}


def _fits(run: Callable[[], None]) -> bool:
    """Runs a program once. False if memory is too small for it; other errors are raised."""
    try:
        run()
    except (MemoryError, RuntimeError) as error:
        of_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not of_memory and "can't allocate memory" not in str(error):  # what torch says on a CPU
            raise
    else:
        return True
    torch.cuda.empty_cache()
    return False


def peak_of(run: Callable[[], None], device: str = "cpu") -> int:
    """Peak memory that a program adds, in bytes: live tensors on a CPU, the allocator's count on a GPU."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    with LiveTensors() as memory:
        run()
    return memory.peak


def program(module: nn.Module, inputs: Sequence[Tensor | None], mode: Mode) -> Callable[[], None]:
    """A forward pass with fixed weights; in training also a backward pass, for all that requires gradients.

    Gradients end with a pass, so that the next one makes them again and its peak contains them.
    """
    module.train(mode == "training")
    products: Products = {}

    def infer() -> None:
        with torch.inference_mode(), fixed_weights(products):
            module(*inputs)

    def step() -> None:
        module(*inputs).sum().backward()
        module.zero_grad(set_to_none=True)
        for source in inputs:
            if source is not None:
                source.grad = None

    return infer if mode == "inference" else step


def program_of(factory: AttentionFactory | None, setting: Setting) -> Callable[[], None]:
    """The program that is measured: a pass of the layer or model with an attention, on seeded weights and inputs."""
    torch.manual_seed(0)
    make = _layer if setting.level == "layer" else _model
    module, source = make(factory, setting)
    module.to(setting.device, setting.dtype)
    if setting.compiled:
        compile_network(module, setting.compiled)
    return program(module, (source,), setting.mode)


class _SelfAttention(nn.Module):
    """An attention alone, called on one tensor."""

    def __init__(self, factory: AttentionFactory, setting: Setting) -> None:
        super().__init__()
        self.attention = factory(
            site=Site(
                pattern=Pattern.SELF, dim=setting.dim, heads=setting.heads,
                query_len=setting.length, context_len=setting.length,
            )
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, Masks())[0]


class _TokenModel(nn.Module):
    """A standalone encoder, or a sequence encoder with an attention or none, on token ids without padding."""

    encoder: nn.Module

    def __init__(self, factory: AttentionFactory | None, setting: Setting) -> None:
        super().__init__()
        spec = DataSpec(max_len=setting.length, vocab=257, classes=10)
        dim, heads, ffn = setting.dim, setting.heads, setting.ffn
        if is_standalone(factory):
            self.encoder = sized(factory, layers=setting.layers, dim=dim, heads=heads, ffn=ffn)(spec=spec)
        else:
            self.encoder = SequenceEncoder(spec, factory, setting.layers, dim, heads, ffn)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encoder(tokens, None)


def _layer(factory: AttentionFactory | None, setting: Setting) -> tuple[nn.Module, Tensor]:
    assert factory is not None
    if is_standalone(factory):
        raise UserError("A backbone has no layer to measure alone; leave it out, or measure with levels=[model].")
    x = torch.randn(setting.batch, setting.length, setting.dim, device=setting.device, dtype=setting.dtype)
    return _SelfAttention(factory, setting), x.requires_grad_(setting.mode == "training")


def _model(factory: AttentionFactory | None, setting: Setting) -> tuple[nn.Module, Tensor]:
    tokens = torch.randint(1, 257, (setting.batch, setting.length), device=setting.device)
    return _TokenModel(factory, setting), tokens
