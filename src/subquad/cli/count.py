"""Counts the operations of whole models by module and estimates their energy.

    python scripts/count.py attention=[softmax,ecoformer] task=imagenet backbone=pvt_v2
    python scripts/count.py attention=[softmax,dba] task=lra/text depth=3
    python scripts/count.py attention=[softmax,ecoformer] task=imagenet backbone=pvt_v2 convention=published

Own settings, with their defaults:
    attention=              one or several, as [a,b]; by default that of the other overrides
    convention=everything   count every operator; published: as in EcoFormer's tables (docs/measuring.md)
    backward=false          true: also count the backward pass
    rows=1                  rows of a batch, each as long as the task's longest
    depth=0                 show modules down to this depth instead of groups
    precision=fp32          precision for the energy: int8, int32, fp16, fp32
All other overrides are those of train.py. Nothing is trained or computed. Tasks whose sizes depend on their files need
these files, or data=synthetic.
"""

import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from torch import nn

from subquad.cli.command import listed, script_settings
from subquad.config.compose import compose_run
from subquad.config.settings import check_settings
from subquad.measure.aten import Tally
from subquad.measure.energy import ARITHMETIC, energy
from subquad.measure.inputs import network_inputs
from subquad.measure.operations import Operations, by_group, count
from subquad.planning.model_size import meta_module, spec_of
from subquad.results.missing_data import missing_data
from subquad.utils.errors import UserError

OWN = {
    "attention": None, "convention": "everything", "backward": False, "rows": 1, "depth": 0, "precision": "fp32",
}  # fmt: skip


def main() -> None:
    """Counts one model per attention and prints a table for each."""
    own = [arg for arg in sys.argv[1:] if arg.partition("=")[0] in OWN]
    others = [arg for arg in sys.argv[1:] if arg not in own]
    settings = script_settings(OWN, own)
    if settings.precision not in ARITHMETIC:
        raise UserError(f"precision is {settings.precision}; choose {', '.join(ARITHMETIC)}.")
    chosen = [] if settings.attention is None else [[f"attention={name}"] for name in listed(settings.attention)]
    console = Console(width=110, highlight=False)
    for choice in chosen or [[]]:
        config = compose_run([*choice, *others])
        network, inputs = _network(config, settings.rows)
        operations = count(network, inputs, settings.convention, settings.backward)
        console.print(_table(Path(config.paths.run).parent.name, network, operations, settings))


def _network(config: DictConfig, rows: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """The network of a run and inputs of the greatest length, on the meta device."""
    plain: Any = OmegaConf.to_container(config, resolve=True)
    for section in ("attention", "backbone", "data"):
        check_settings(section, plain.get(section, {}))
    spec = spec_of(plain["data"], prepare=True)
    if spec is None:
        raise UserError(str(missing_data(plain["data"])))
    network = meta_module(plain["task"]["module"], spec).network.eval()
    return network, network_inputs(network, spec, rows, "meta")


def _table(name: str, network: nn.Module, operations: Operations, settings: DictConfig) -> Table:
    table = Table(
        title=f"{name}, convention {settings.convention}, forward{' and backward' * settings.backward}, "
        f"{settings.rows} row(s)",
        title_justify="left",
    )
    heads = ("", "multiplications (M)", "additions (M)", "others (M)", f"energy (µJ, 45 nm {settings.precision} model)")
    for heading in heads:
        table.add_column(heading, justify="right" if heading else "left")
    tallies = _tree(operations, settings.depth) if settings.depth else by_group(network, operations)
    for name, tally in [*tallies.items(), ("total", operations.total)]:
        if name == "total":
            table.add_section()
        numbers = [n / 1e6 for n in (tally.mul, tally.add, tally.other, energy(tally, settings.precision))]
        table.add_row(name, *(f"{n:,.3f}" for n in numbers))
    return table


def _tree(operations: Operations, depth: int) -> dict[str, Tally]:
    """The operations of modules down to a depth, including those of their submodules."""
    paths = dict.fromkeys(
        ".".join(path.split(".")[:level]) for path in operations.modules for level in range(1, depth + 1)
    )
    return {f"{'  ' * path.count('.')}{path}": operations.below(path) for path in paths if path}
