"""Our layers beside the measured public implementations: time and memory as ratios to one softmax layer.

python scripts/bench_peers.py                          # every mechanism with a peer in configs/peers.yaml
python scripts/bench_peers.py attention=[dba,linear] lengths=[4096] rounds=15
python scripts/bench_peers.py attention=[flowformer] compiled=true                        # torch.compile on all sides
"""

import sys
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from subquad.errors import UserError
from subquad.run.doors import CONFIGS, answer_help, load_attention, prepare_process, script_settings

answer_help(__doc__, "peers.yaml")
prepare_process(check_choices=False)

import torch  # noqa: E402  after prepare_process

from subquad.measure.bench import FourMaps, Mode, PlainSoftmax, Setting, measure  # noqa: E402

MODES: tuple[Mode, ...] = ("inference", "training")


def main() -> None:
    """One row for each mechanism, length and mode: ours, the peer's, and whether ours is the smaller.

    "floor" is the time of the four projections alone; mechanisms that compress before they project go below it.
    """
    config = _config(sys.argv[1:])
    torch.set_num_threads(config.threads)
    table = Table(
        title="Ratios to softmax through the fused kernel: d=256, 4 heads, batch 1, "
        f"{config.threads} threads{', compiled' if config.compiled else ''}"
    )
    for heading in ("attention", "n", "mode", "ms", "time", "floor", "peer", "goal", "", "memory", "peer", ""):
        table.add_column(heading, justify="left" if heading in ("attention", "mode", "") else "right")
    for row in config.peers:
        if not config.attention or row.attention in config.attention:
            for length in config.lengths:
                for mode in MODES:
                    setting = Setting(level="layer", mode=mode, length=length, compiled=config.compiled)
                    table.add_row(*_cells(row, setting, config.rounds))
    Console(width=130).print(table)


def _cells(row: DictConfig, setting: Setting, rounds: int) -> list[str]:
    length, mode = setting.length, setting.mode
    loaded = load_attention(row.attention, row.get("overrides", []))
    factories = {"softmax": PlainSoftmax, "floor": FourMaps, "ours": loaded}
    measured = measure(factories, setting, rounds)
    ours, softmax = measured["ours"], measured["softmax"]
    floor = measured["floor"].timing.ratio(softmax.timing)
    time, memory = ours.timing.ratio(softmax.timing), ours.peak / softmax.peak
    place = {(512, "inference"): 0, (4096, "inference"): 1, (512, "training"): 2, (4096, "training"): 3}
    index = place.get((length, mode))
    peer_time = None if index is None else row.time[index]
    peer_memory = None if index is None else row.memory[index]
    goal = peer_time
    if length == 4096:
        goals = row.get("goal") or [None if row.time[i] is None else 0.8 * row.time[i] for i in (1, 3)]
        goal = goals[MODES.index(mode)]
    milliseconds = f"{1e3 * ours.timing.median:.2f}"
    return [
        row.attention, str(length), mode, milliseconds,
        f"{time:.3f}", f"{floor:.3f}", _number(peer_time), _number(goal), _verdict(time, goal),
        f"{memory:.2f}", _number(peer_memory), _verdict(memory, peer_memory),
    ]  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _verdict(value: float, limit: float | None) -> str:
    return "" if limit is None else "met" if round(value, 2) <= round(limit, 2) else "above"


def _config(words: list[str]) -> Any:
    config = OmegaConf.merge(OmegaConf.load(CONFIGS / "peers.yaml"), {"attention": [], "threads": 2})
    config = script_settings(config, words)
    known = [row.attention for row in config.peers]
    if unknown := [name for name in config.attention if name not in known]:
        raise UserError(f"No peer was measured for {', '.join(unknown)}; choose from {', '.join(known)}.")
    return config


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
