"""Compares this package's layers with public implementations: time and memory relative to a softmax layer.

python scripts/bench_peers.py                          # every mechanism with a peer in configs/peers.yaml
python scripts/bench_peers.py attention=[dba,linear] lengths=[4096] rounds=15
python scripts/bench_peers.py attention=[flowformer] compiled=true                # torch.compile for all layers
python scripts/bench_peers.py attention=[bigbird,yoso] public=true                # the public code in the same run
python scripts/bench_peers.py attention=[cosformer] public=true checkouts=../clones  # its repository is cloned there
"""

import sys
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from subquad.attention.base import AttentionFactory
from subquad.cli.command import script_settings
from subquad.config.choices import CONFIGS
from subquad.config.compose import load_attention
from subquad.measure.benchmark import (
    PRODUCTS_ALONE,
    FourMaps,
    Mode,
    PlainSoftmax,
    Setting,
    measure,
    program_of,
)
from subquad.measure.third_party import public
from subquad.utils.display import counted
from subquad.utils.errors import UserError

MODES: tuple[Mode, ...] = ("inference", "training")


def main() -> None:
    """Prints a row for each mechanism, length and mode: both layers' ratios, and whether this package's are smaller.

    "maps" is the ratio of four projections only; mechanisms that compress before they project can be faster. "products"
    is the ratio of the layer's matrix products without any other operation, a lower bound for its time.
    """
    config = _config(sys.argv[1:])
    torch.set_num_threads(config.threads)
    beside = "the peers' in this run" if config.public else "the peers' as recorded"
    table = Table(
        title="Ratios to softmax through the fused kernel: d=256, 4 heads, batch 1, "
        f"{counted(config.threads, 'thread')}{', compiled' if config.compiled else ''}; {beside}"
    )
    headings = ("attention", "n", "mode", "ms", "time", "maps", "products", "peer", "goal", "", "memory", "peer", "")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("attention", "mode", "") else "right")
    rows = [row for row in config.peers if not config.attention or row.attention in config.attention]
    if config.public:
        _check_public(rows, config)
    for row in rows:
        for length in config.lengths:
            for mode in MODES:
                setting = Setting(level="layer", mode=mode, length=length, compiled=config.compiled)
                table.add_row(*_cells(row, setting, config))
    Console(width=130).print(table)


def _check_public(rows: list[DictConfig], config: DictConfig) -> None:
    """Raises UserError with all missing packages and clones, before anything is measured."""
    missing = []
    for row in rows:
        try:
            if peer := _public(row, config):
                program_of(peer, Setting(level="layer", mode="inference", length=512))
        except UserError as error:
            missing.append(f"{row.attention}: {error}")
    if missing:
        raise UserError("\n".join(missing))


def _public(row: DictConfig, config: DictConfig) -> AttentionFactory | None:
    return public(row.attention, None if config.checkouts is None else Path(config.checkouts))


def _cells(row: DictConfig, setting: Setting, config: DictConfig) -> list[str]:
    length, mode = setting.length, setting.mode
    ours = load_attention(row.attention, row.get("overrides", []))
    factories: dict[str, AttentionFactory] = {"softmax": PlainSoftmax, "maps": FourMaps, "ours": ours}
    if config.public and (public_layer := _public(row, config)):
        factories["public"] = public_layer
    measured = measure(factories, setting, config.rounds, alone=None if config.compiled else "ours")
    own, softmax = measured["ours"], measured["softmax"]
    maps = measured["maps"].timing.ratio(softmax.timing)
    alone = measured.get(PRODUCTS_ALONE)
    products = None if alone is None else alone.timing.ratio(softmax.timing)
    time, memory = own.timing.ratio(softmax.timing), own.peak / softmax.peak
    peer_time, peer_memory = (None, None) if config.public else _recorded(row, setting)
    if peer := measured.get("public"):
        peer_time, peer_memory = peer.timing.ratio(softmax.timing), peer.peak / softmax.peak
    goal = peer_time
    if length == 4096:
        goals = row.get("goal") or [peer_time and 0.8 * peer_time] * 2
        goal = goals[MODES.index(mode)]
    milliseconds = f"{1e3 * own.timing.median:.2f}"
    return [
        row.attention, str(length), mode, milliseconds,
        f"{time:.3f}", f"{maps:.3f}", _number(products), _number(peer_time), _number(goal), _verdict(time, goal),
        f"{memory:.2f}", _number(peer_memory), _verdict(memory, peer_memory),
    ]  # fmt: skip


def _recorded(row: DictConfig, setting: Setting) -> tuple[float | None, float | None]:
    """Recorded time and memory of the peer; None for lengths at which it was not measured."""
    indices = {(512, "inference"): 0, (4096, "inference"): 1, (512, "training"): 2, (4096, "training"): 3}
    index = indices.get((setting.length, setting.mode))
    return (None, None) if index is None else (row.time[index], row.memory[index])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _verdict(value: float, limit: float | None) -> str:
    return "" if limit is None else "met" if round(value, 2) <= round(limit, 2) else "above"


def _config(overrides: list[str]) -> Any:
    config = OmegaConf.merge(OmegaConf.load(CONFIGS / "peers.yaml"), {"attention": [], "threads": 2})
    config = script_settings(config, overrides)
    known = [row.attention for row in config.peers]
    if unknown := [name for name in config.attention if name not in known]:
        raise UserError(f"No peer was measured for {', '.join(unknown)}; choose from {', '.join(known)}.")
    return config
