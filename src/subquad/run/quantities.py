"""What cells of tables measure instead of training: `measure: {_target_: subquad.run.quantities.<function>, ...}`.

Each function is given the words of its cell, as train.py would be, and its own settings from the table. It returns a
number, or words where the paper prints words. `spec` says what the data would be, so that none are needed:
{_target_: subquad.specs.DataSpec, max_len: 4096, vocab: 257, classes: 2}.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from omegaconf import OmegaConf

from subquad.errors import UserError
from subquad.run.doors import compose_run

Mode = Literal["inference", "training"]


def setting(words: Sequence[str], key: str) -> float | str:
    """The value of a key of the configuration, such as `backbone.dim`; raises UserError where it has none."""
    value = OmegaConf.select(compose_run(words), key)
    if value is None:
        raise UserError(f"The configuration has no value {key}.")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def complexity(words: Sequence[str]) -> str:
    """Time and memory of the mechanism in the length of the sequence, as its class states them."""
    from hydra.utils import get_class

    return str(get_class(compose_run(words).attention["_target_"]).complexity)  # type: ignore[attr-defined]


def parameters(words: Sequence[str], spec: Any, part: Literal["all", "attention_layers"] = "all") -> float:
    """Trainable numbers of the network; attention_layers: attentions, feed-forward nets and norms of an MCAN."""
    import torch

    with torch.device("meta"):
        model = _network(words, spec)
    if part == "attention_layers":
        return float(model.stack_parameters)
    return float(sum(p.numel() for p in model.parameters() if p.requires_grad))


def relative_speed(
    words: Sequence[str], spec: Any, against: Sequence[str], mode: Mode = "inference", batch: int = 1, rounds: int = 7
) -> float:
    """How many times as fast the network is as the one with the words `against`: the median ratio of rounds."""
    from subquad.measure.timing import interleave

    sides = {"ours": _program(words, spec, mode, batch), "theirs": _program([*words, *against], spec, mode, batch)}
    timed = interleave(sides, rounds)
    return timed["theirs"].ratio(timed["ours"])


def relative_memory(
    words: Sequence[str], spec: Any, against: Sequence[str], mode: Mode = "inference", batch: int = 1
) -> float:
    """Peak of live tensors over that of the network with the words `against`."""
    from subquad.measure.bench import peak_of

    ours, theirs = (peak_of(_program(w, spec, mode, batch)) for w in (words, [*words, *against]))
    return ours / theirs


def throughput(words: Sequence[str], spec: Any, batch: int = 32, mode: Mode = "inference", rounds: int = 7) -> float:
    """Rows a second of the network, on the GPU where there is one."""
    from subquad.measure.timing import interleave

    return batch / interleave({"ours": _program(words, spec, mode, batch)}, rounds)["ours"].median


def operations(
    words: Sequence[str],
    spec: Any,
    count: Literal["mul", "add", "other", "energy"],
    convention: Literal["everything", "published"] = "everything",
    backward: bool = False,
    batch: int = 1,
) -> float:
    """Billions of multiplications, additions or others of the network, or of pJ by the 45 nm model of fp32."""
    import torch

    from subquad.measure import operations as counter
    from subquad.measure.energy import energy
    from subquad.measure.inputs import network_inputs

    with torch.device("meta"):
        network = _network(words, spec).eval()
    found = counter.count(network, network_inputs(network, spec, batch, "meta"), convention, backward).total
    return (energy(found) if count == "energy" else float(getattr(found, count))) / 1e9


def _network(words: Sequence[str], spec: Any) -> Any:
    from hydra.utils import instantiate

    config = OmegaConf.to_container(compose_run(words), resolve=True)
    assert isinstance(config, dict)
    return instantiate(config["task"]["module"]["backbone"], _convert_="all")(spec=spec)


def _program(words: Sequence[str], spec: Any, mode: Mode, batch: int) -> Callable[[], None]:
    import torch

    from subquad.measure.bench import program
    from subquad.measure.inputs import random_inputs

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return program(_network(words, spec).to(device), random_inputs(spec, batch, device), mode)
