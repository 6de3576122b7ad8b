"""Measurements of cells that are not trained: `measure: {_target_: subquad.results.measures.<function>, ...}`.

Each function takes the overrides of its cell, as train.py does, and its own settings from the table. It returns a
number, or text where the paper prints text; `Noted` adds how a number was measured if that differs from the request.
`spec` describes the data, so that none are needed:
{_target_: subquad.specs.DataSpec, max_len: 4096, vocab: 257, classes: 2}. A UserError means that a cell cannot be
measured here, and says what to do. Functions with a `seed` measure the trained run with that seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from omegaconf import OmegaConf

from subquad.config.compose import compose_run
from subquad.utils.cores import usable_threads
from subquad.utils.errors import UserError

Mode = Literal["inference", "training"]


@dataclass(frozen=True, slots=True)
class Noted:
    """A measured value with a note on how it was measured, if that differs from the request."""

    value: float | str
    note: str = ""


def setting(overrides: Sequence[str], key: str) -> float | str:
    """The value of a key of the configuration, such as `backbone.dim`; raises UserError where it has none."""
    value = OmegaConf.select(compose_run(overrides), key)
    if value is None:
        raise UserError(f"The configuration has no value {key}.")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def complexity(overrides: Sequence[str]) -> str:
    """Time and memory of the mechanism in the length of the sequence, as its class states them."""
    from hydra.utils import get_class

    return str(get_class(compose_run(overrides).attention["_target_"]).complexity)  # type: ignore[attr-defined]


def parameters(overrides: Sequence[str], spec: Any, part: Literal["all", "attention_layers"] = "all") -> float:
    """Trainable numbers of the network; attention_layers: attentions, feed-forward nets and norms of an MCAN."""
    import torch

    with torch.device("meta"):
        model = _network(overrides, spec)
    if part == "attention_layers":
        return float(model.stack_parameters)
    return float(sum(p.numel() for p in model.parameters() if p.requires_grad))


def relative_speed(
    overrides: Sequence[str], spec: Any, reference: Sequence[str], mode: Mode = "inference", batch: int = 1,
    rounds: int = 7,
) -> float | Noted:  # fmt: skip
    """How many times as fast the network is as the one with the overrides `reference`: the median ratio of rounds.

    A batch that does not fit is halved until it does; see `_fitting`. On a CPU, batches have four rows at most: more
    take longer and hardly change the ratio (DBA in training at 1,024 tokens: 2.95 with 4 rows, 2.83 with 32).
    """
    from subquad.measure.timing import interleave

    sides = {"ours": overrides, "reference": reference_overrides(overrides, reference)}
    rows, note = _fitting(list(sides.values()), spec, mode, batch)
    if rows > 4 and _device() == "cpu":
        rows, note = 4, f"in batches of 4 instead of {batch}, as more rows only take longer on a CPU"
    timed = interleave({side: _program(w, spec, mode, rows) for side, w in sides.items()}, rounds)
    ratio = timed["reference"].ratio(timed["ours"])
    return Noted(ratio, note) if note else ratio


def relative_memory(
    overrides: Sequence[str], spec: Any, reference: Sequence[str], mode: Mode = "inference", batch: int = 1
) -> float | Noted:
    """Peak of live tensors divided by the peak of the network with the overrides `reference`.

    A batch that does not fit is halved until it does; see `_fitting`.
    """
    from subquad.measure.benchmark import peak_of

    sides = [overrides, reference_overrides(overrides, reference)]
    rows, note = _fitting(sides, spec, mode, batch)
    ours, other = (peak_of(_program(w, spec, mode, rows)) for w in sides)
    return Noted(ours / other, note) if note else ours / other


def step_costs(
    sides: Mapping[str, Sequence[str]], spec: Any, batch: int, seconds: float = 20.0
) -> dict[str, dict[str, float]]:
    """Cost of a training step (forward and backward pass) of networks on rows of full length, measured in turn.

    `seconds`: the median of rounds, as many as take about `seconds` in all (3 to 51). `bytes`: the peak of live tensors
    on a CPU, of the allocator on a GPU. `parameters`: trainable numbers. All on the whole batch, or the part of it that
    fits the memory, which is `rows`.

    sides: overrides by name. Raises UserError for a network that cannot be built for `spec`.
    """
    import torch

    from subquad.measure.benchmark import peak_of
    from subquad.measure.timing import interleave

    torch.set_num_threads(usable_threads())
    rows, _ = _fitting(list(sides.values()), spec, "training", batch)
    programs = {name: _program(overrides, spec, "training", rows) for name, overrides in sides.items()}
    once = interleave(programs, 1)
    rounds = max(3, min(51, int(seconds / sum(timing.median for timing in once.values()))))
    timed = interleave(programs, rounds, warmup=0)
    return {
        name: {
            "seconds": timed[name].median, "bytes": peak_of(run, _device()), "rows": rows,
            "parameters": parameters(sides[name], spec),
        }
        for name, run in programs.items()
    }  # fmt: skip


def reference_overrides(overrides: Sequence[str], reference: Sequence[str]) -> list[str]:
    """The overrides of a cell with those of `reference`, without settings of what `reference` replaces.

    attention=softmax replaces attention.k= and backbone.attention=null.
    """
    replaced = [override.partition("=")[0] for override in reference]

    def is_kept(override: str) -> bool:
        key = override.partition("=")[0]
        return key in replaced or not any(f".{group}." in f".{key}." for group in replaced)

    return [*filter(is_kept, overrides), *reference]


def throughput(
    overrides: Sequence[str], spec: Any, batch: int = 32, mode: Mode = "inference", rounds: int = 7
) -> float:
    """Rows per second of the network, on the GPU if there is one."""
    from subquad.measure.timing import interleave

    return batch / interleave({"ours": _program(overrides, spec, mode, batch)}, rounds)["ours"].median


def operations(
    overrides: Sequence[str], spec: Any, count: Literal["mul", "add", "other", "energy"],
    convention: Literal["everything", "published"] = "everything", backward: bool = False, batch: int = 1,
) -> float:  # fmt: skip
    """Billions of multiplications, additions or others of the network, or of pJ by the 45 nm model of fp32."""
    import torch

    from subquad.measure import operations as counter
    from subquad.measure.energy import energy
    from subquad.measure.inputs import network_inputs

    with torch.device("meta"):
        network = _network(overrides, spec).eval()
    found = counter.count(network, network_inputs(network, spec, batch, "meta"), convention, backward).total
    return (energy(found) if count == "energy" else float(getattr(found, count))) / 1e9


def inference_gain(
    overrides: Sequence[str], of: Literal["time", "memory"], length: int, batch: int = 1, rounds: int = 3
) -> float:
    """How many times as fast, or as small, the encoder is as with softmax attention written out, for `length` tokens.

    The model is the language model of the overrides without its vocabulary: logits of 50,265 words for each token would
    take most of the memory on both sides, and the factor 60 of Linformer's Table 3 would be impossible. Time is the
    median ratio of rounds, on the GPU if there is one. Memory is the peak of live tensors without weights, the inverse
    of the largest batch that fits; it is computed from shapes, so that softmax at 65,536 tokens has one too. If the
    attention weights of all heads take more than half of the memory, softmax is timed one head after the other; on a
    CPU also from 4 GiB, because tensors above 2 GiB are new pages at each use, which slows softmax down up to three
    times.

    Raises UserError for `of="time"` if not even one head fits.
    """
    import torch

    from subquad.measure.benchmark import program
    from subquad.measure.inputs import random_inputs
    from subquad.measure.memory import total_memory
    from subquad.measure.shapes import peak_of_shapes
    from subquad.measure.timing import interleave
    from subquad.specs import TextSpec

    spec = TextSpec(max_len=length, vocab=50265, tokenizer="0")
    others = [override for override in overrides if not override.startswith(("attention=", "attention."))]
    sides = {"ours": list(overrides), "softmax": [*others, "attention=softmax_explicit"]}
    with torch.device("meta"):
        inputs = random_inputs(spec, batch, "meta")
        peaks = {side: peak_of_shapes(_network(w, spec).encoder.eval(), inputs) for side, w in sides.items()}
    if of == "memory":
        return peaks["softmax"] / peaks["ours"]
    device = _device()
    room = total_memory(device) / 2
    if peaks["softmax"] > (room if device == "cuda" else min(room, 4 * 2**30)):
        sides["softmax"].append("attention.heads_at_once=1")
        with torch.device("meta"):
            peaks["softmax"] = peak_of_shapes(_network(sides["softmax"], spec).encoder.eval(), inputs)
    if max(peaks.values()) > room:
        raise UserError(
            f"Softmax attention over {length:,} tokens holds {peaks['softmax'] / 2**30:,.0f} GiB at its peak even one "
            "head at a time, more than half of the memory here; measure this cell on a larger machine."
        )
    inputs = random_inputs(spec, batch, device)
    torch.manual_seed(0)
    encoders = {side: _network(w, spec).encoder.to(device) for side, w in sides.items()}
    timed = interleave({side: program(net, inputs, "inference") for side, net in encoders.items()}, rounds, warmup=1)
    return timed["softmax"].ratio(timed["ours"])


def energy_cost(
    overrides: Sequence[str], of: Literal["energy", "area"], operation: Literal["add", "multiply"],
    bits: Literal[16, 32],
) -> float:  # fmt: skip
    """pJ or µm² of one floating-point operation at 45 nm, the constants of every energy in this package."""
    from subquad.measure.aten import Tally
    from subquad.measure.energy import area, energy

    one = Tally(add=1) if operation == "add" else Tally(mul=1)
    return (energy if of == "energy" else area)(one, "fp16" if bits == 16 else "fp32")


def bitfusion(
    overrides: Sequence[str], of: Literal["latency", "energy"], reading: Literal["published", "whole"] = "published"
) -> float:
    """Milliseconds or nJ of one layer of the mechanism on BitFusion, by its public cost model.

    reading: "published", 16 rows of products, which gives EcoFormer's Table 7; "whole", a sequence of 3,136 tokens.
    Raises UserError for mechanisms whose layer has no layout of products.
    """
    from subquad.measure.analysis.bitfusion import attention_layer, table_7

    mechanism = str(compose_run(overrides).attention["_target_"]).split(".")[-2]
    name = "transformer" if mechanism == "softmax" else mechanism
    cost = table_7(name) if reading == "published" else attention_layer(name, rows=3136)
    if of == "energy":
        return cost.nanojoules
    return cost.milliseconds / (16 if reading == "published" else 1)


def head_distance(overrides: Sequence[str], statistic: Literal["mean", "std"], seed: int, rows: int = 8) -> float:
    """Mean or standard deviation of the distances between the heads of a trained run, on `rows` test rows, one by one.

    Raises UserError, with the command that trains it, where the run has not ended.
    """
    from subquad.measure.analysis.head_weights import head_distances
    from subquad.results.run_store import RunStore

    store = RunStore()
    network = store.network(overrides, seed)
    if network is None:
        raise UserError(f"Distances between heads need a trained run; train it first: {store.command(overrides, seed)}")
    dataset = store.data(overrides, seed).batched("test")
    inputs = (dataset.__getitems__([place]).network_inputs for place in range(min(rows, len(dataset))))
    mean, spread = head_distances(network, inputs)
    return {"mean": mean, "std": spread}[statistic]


def passed_rank(overrides: Sequence[str], length: int) -> float:
    """How many numbers an untrained attention passes on from the first half of `length` tokens to the second.

    See `subquad.measure.analysis.attention_matrix.passed_rank`; 0 without attention.
    """
    from hydra.utils import instantiate

    from subquad.measure.analysis import attention_matrix

    backbone: Any = OmegaConf.to_container(compose_run(overrides).backbone, resolve=True)
    if backbone["attention"] is None:
        return 0.0
    factory = instantiate(backbone["attention"], _convert_="all")
    return float(
        attention_matrix.passed_rank(*attention_matrix.build(factory, length, backbone["dim"], backbone["heads"]))
    )


def _network(overrides: Sequence[str], spec: Any) -> Any:
    """The untrained network: no cost depends on the values of weights, so that none are fetched.

    What earlier networks left is returned first: two of half of the machine's memory would fill it otherwise.
    """
    from hydra.utils import instantiate

    from subquad.config.settings import without_weights
    from subquad.utils.malloc import return_freed_memory

    return_freed_memory()
    config = OmegaConf.to_container(compose_run(overrides), resolve=True)
    assert isinstance(config, dict)
    return instantiate(without_weights(config["task"]["module"]["backbone"]), _convert_="all")(spec=spec)


def _program(overrides: Sequence[str], spec: Any, mode: Mode, batch: int) -> Callable[[], None]:
    import torch

    from subquad.measure.benchmark import program
    from subquad.measure.inputs import network_inputs

    torch.manual_seed(0)
    network = _network(overrides, spec).to(_device())
    return program(network, network_inputs(network, spec, batch, _device()), mode)


def _fitting(sides: Sequence[Sequence[str]], spec: Any, mode: Mode, batch: int) -> tuple[int, str]:
    """The batch, halved until the larger of the networks fits in a part of the memory, and a note if it was.

    The peak of a batch is estimated as the peak of a single row times the number of rows. It may take half of a GPU's
    memory and a quarter of a CPU's, where a process that keeps what it frees holds twice its live tensors
    (`keep_freed_memory`; measured with two networks in turn).
    """
    from subquad.measure.benchmark import peak_of
    from subquad.measure.memory import total_memory

    if batch == 1:
        return 1, ""
    part, share = ("half", 2) if _device() == "cuda" else ("a quarter", 4)
    room = total_memory(_device()) / share
    row = max(peak_of(_program(overrides, spec, mode, 1)) for overrides in sides)
    rows = batch
    while rows > 1 and rows * row > room:
        rows //= 2
    return rows, "" if rows == batch else f"in batches of {rows}, as {batch} rows take more than {part} of the memory"


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
