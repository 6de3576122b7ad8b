"""Checks a GPU: agreement with a CPU, padding, resuming, several devices, speed; writes a page and a file to send.

python scripts/check_gpu.py                                     # all attentions, on CUDA
python scripts/check_gpu.py quick=true attention=[softmax,dba]  # minutes
python scripts/check_gpu.py device=cpu quick=true               # the procedure itself, without a GPU
python scripts/check_gpu.py parts=[parity,padding] attention=my_package.my_module:MyAttention

Parts: parity and padding (for each attention), resume, devices, memory, speed. A check that fails, runs out
of memory or ends its process does not affect the others. The same command continues after an interruption, and repeats
what failed.
"""

import dataclasses
import json
import math
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import torch
from hydra.utils import instantiate
from rich.console import Console

from subquad.cli.command import listed, prepare_process, script_settings
from subquad.cli.table_arguments import outputs_of
from subquad.config.choices import hint, options
from subquad.config.compose import load_own_attention
from subquad.config.compositions import Compositions
from subquad.config.settings import without_weights
from subquad.measure import device_checks, machine
from subquad.measure.benchmark import PlainSoftmax, Setting, measure
from subquad.measure.device_checks import CheckedValue
from subquad.measure.step_memory import USABLE, real_peak, step_peak
from subquad.planning.cost import setting_of
from subquad.planning.model_size import spec_of
from subquad.records import fingerprint, now, write_json
from subquad.report.html.check_page import write_check_page
from subquad.training import run_checks
from subquad.utils.cores import usable_cores, usable_threads
from subquad.utils.devices import torch_settings
from subquad.utils.display import duration
from subquad.utils.errors import UserError, explain, first_line

PARTS = {
    "parity": "outputs and gradients agree with a CPU in float64, fitted state is finite",
    "padding": "padding at awkward lengths is invisible, and nothing is NaN",
    "resume": "a killed run ends as an undisturbed one",
    "devices": "a run on several devices ends as on one",
    "memory": "a training step takes no more memory than scripts/plan.py estimates",
    "speed": "training step of a layer beside flash softmax",
}
FAST = ("softmax", "dba", "linformer", "luna", "performer", "nystromformer", "linear", "ecoformer", "local", "bigbird")
"""The ten attentions whose speed is measured."""
MEASURED = {
    "softmax": ("task=lra/listops", "attention=softmax", "backbone.dropout=0.0", "backbone.attention_dropout=0.0"),
    "dba": ("task=lra/listops", "attention=dba", "backbone.dropout=0.0", "backbone.attention_dropout=0.0"),
    "ecoformer": ("task=imagenet", "recipe=ecoformer_scratch", "attention=ecoformer"),
}
"""Models whose memory is compared with its estimate."""
REMEDY = {
    "parity": "{} gives other numbers on this device than on a CPU: report it, and train it on a CPU meanwhile",
    "padding": "{} is not safe with padding on this device: report it, and do not train it here meanwhile",
    "resume": "resumed runs end with other numbers: report it, and train here without interruptions meanwhile",
    "devices": "several devices give other numbers than one: report it, and use trainer=gpu meanwhile",
    "memory": "estimates for {} are too low: report it, and choose trainer.accumulate_grad_batches by hand meanwhile",
    "speed": "{} cannot be timed: report it",
}
SECONDS = 900
"""The longest time of one check."""
WORKERS = 8
"""The most processes that check side by side; each holds a CUDA context, about half a gigabyte."""
Item = tuple[str, str, bool]
"""A part, the attention that it checks (empty for none), and whether it is compiled."""
console = Console(width=110, highlight=False)


def main() -> int:
    """Runs what is left to check, writes the page and the file; returns 1 if a check failed."""
    defaults = {"device": "cuda", "attention": "all", "parts": list(PARTS), "quick": False, "output": None}
    config = script_settings(defaults, sys.argv[1:])
    items = planned(config)
    folder, state = _state(config)
    kept = {tuple(done["item"]) for done in state["checks"] if done["status"] != "failed"}
    left = [item for item in items if item not in kept]
    state["checks"] = [done for done in state["checks"] if tuple(done["item"]) not in left]
    before = len(items) - len(left)
    console.print(f"{len(items)} checks on {state['device']['name']}, {before} finished before: {folder}", markup=False)
    for done in _outcomes(left, str(config.device), bool(config.quick), folder):
        state["checks"].append(done)
        state["finished"] = now()
        write_json(folder / "check.json", state)
        colour = {"passed": "green", "failed": "red", "skipped": "yellow"}[done["status"]]
        console.print(f"[{colour}]{done['status']:8}[/] {title(done['item']):40} {duration(done['seconds'])}")
        if done["status"] != "passed":
            console.print(f"         {done['reason']}", markup=False, soft_wrap=True)
    write_check_page(folder / "index.html", state, PARTS)
    counts = {
        status: sum(done["status"] == status for done in state["checks"]) for status in ("passed", "failed", "skipped")
    }
    console.print(
        ", ".join(f"{count} {status}" for status, count in counts.items()) + f". Page: {folder / 'index.html'}",
        markup=False,
    )
    console.print(
        f"Please send {folder / 'check.json'}: attach it to an issue of the repository.", soft_wrap=True, markup=False
    )
    return int(counts["failed"] > 0)


def planned(config: Any) -> list[Item]:
    """The checks of these settings; raises UserError for settings that are none, and without the device."""
    parts = listed(config.parts)
    if wrong := [part for part in parts if part not in PARTS]:
        raise UserError(f'There is no part "{wrong[0]}"; {hint(wrong[0], list(PARTS))}')
    names = options("attention") if config.attention == "all" else listed(config.attention)
    for name in names:
        if ":" not in name and name not in options("attention"):
            raise UserError(f"There is no attention {name}; {hint(name, options('attention'))}")
    if config.device not in ("cuda", "cpu"):
        raise UserError(f"device is {config.device}; it takes cuda or cpu.")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"torch {torch.__version__} finds no CUDA device; install a driver and a torch for CUDA, or check the "
            "procedure itself with device=cpu."
        )
    timed = [name for name in FAST if name in names] if config.attention == "all" else names[:10]
    found: list[Item] = [(part, name, False) for part in ("parity", "padding") if part in parts for name in names]
    found += [(part, "", False) for part in ("resume", "devices") if part in parts]
    found += [("memory", name, False) for name in MEASURED if name in names and "memory" in parts]
    if "speed" in parts:
        found += [
            ("speed", name, compiled) for compiled in (False, True) for name in timed[: 2 if config.quick else 10]
        ]
    return found


def title(item: Sequence[Any]) -> str:
    """A check as it is printed."""
    return " ".join([item[0], item[1], "compiled" if item[2] else ""]).strip()


def _state(config: Any) -> tuple[Path, dict[str, Any]]:
    """The folder of these settings on this machine, and the file in it, or a new one."""
    facts = machine.facts()
    settings = {"device": str(config.device), "quick": bool(config.quick)}
    key = fingerprint({**settings, **{name: facts[name] for name in ("machine", "versions", "commit")}})
    folder = Path(config.output or outputs_of([]) / "check").resolve() / f"{config.device}-{key}"
    try:
        state = json.loads((folder / "check.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        state = {"checks": []}
    return folder, {**facts, "settings": settings, "device": machine.device_facts(str(config.device))} | {
        "checks": state["checks"]
    }


def _outcomes(items: list[Item], device: str, quick: bool, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the outcome of each check, several at a time, as their host mostly starts and compiles; `speed` alone."""
    timed = [item for item in items if item[0] == "speed"]
    others = [item for item in items if item[0] != "speed"]
    workers = min(WORKERS, max(1, usable_cores() // 2))
    for group, count in ((others, workers), (timed, 1)):
        waiting: Queue[Item] = Queue()
        for item in sorted(group, key=lambda item: item[0] not in ("resume", "devices")):  # the longest first
            waiting.put(item)
        done: Queue[dict[str, Any]] = Queue()
        running: list[BaseProcess] = []
        arguments = (waiting, done, device, quick, folder, max(1, usable_threads() // count), running)
        for _ in range(min(count, len(group))):
            Thread(target=_supervise, args=arguments, daemon=True).start()
        try:
            for _ in group:
                yield done.get()
        finally:
            waiting.queue.clear()
            for process in running:
                process.kill()


def _supervise(
    waiting: "Queue[Item]", done: "Queue[dict[str, Any]]", device: str, quick: bool, folder: Path, threads: int,
    running: list[BaseProcess],
) -> None:  # fmt: skip
    """Runs checks in another process, which is replaced when it ends, hangs or has lost the device."""
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    while not waiting.empty():
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(device, quick, folder, threads, there))
        process.start()
        running.append(process)
        there.close()
        lost = False
        while not lost:
            try:
                item = waiting.get_nowait()
            except Empty:
                break
            started = time.monotonic()
            try:
                here.send(item)
                lost = not here.poll(SECONDS)
                outcome = _ended(item, f"no answer within {SECONDS} seconds", SECONDS) if lost else here.recv()
                lost = lost or outcome["device_lost"]
            except (EOFError, OSError):
                process.join()
                lost, seconds = True, time.monotonic() - started
                outcome = _ended(item, f"the process ended with status {process.exitcode}", seconds)
            done.put(outcome)
        process.kill()
        process.join()


def _ended(item: Item, reason: str, seconds: float) -> dict[str, Any]:
    return _outcome(item, "failed", f"{title(item)}: {reason}; {_remedy(item)}.", seconds)


def _remedy(item: Item) -> str:
    return REMEDY[item[0]].format(item[1]) + ", with the file check.json"


def _work(device: str, quick: bool, folder: Path, threads: int, connection: Connection) -> None:
    """Sends the outcome of each check that it receives."""
    prepare_process()
    torch.set_num_threads(threads)
    while True:
        connection.send(check(connection.recv(), device, quick, folder))


def check(item: Item, device: str, quick: bool, folder: Path) -> dict[str, Any]:
    """The outcome of one check; an exception of any kind is one."""
    started, found, results = time.monotonic(), list[CheckedValue](), dict[str, Any]()
    trace, lost = "", False
    try:
        if item[0] == "devices" and device == "cuda" and torch.cuda.device_count() < 2:
            status, reason = "skipped", "There is one GPU; several are needed to compare them."
        else:
            with torch_settings():
                found, results = _run(item, device, quick, folder)
            failed = [finding for finding in found if not finding.holds]
            status = "failed" if failed else "passed"
            reason = "; ".join(f"{f.what}: {f.value:.2g}, at most {f.limit:.2g} expected" for f in failed[:3])
            reason = f"{reason}; {_remedy(item)}." if failed else ""
    except torch.OutOfMemoryError as error:
        status, trace = "failed", traceback.format_exc()
        reason = f"Out of memory ({first_line(error)}); end other programs on the GPU (nvidia-smi) and run this again."
    except Exception as error:
        status, trace = "failed", traceback.format_exc()
        cause = explain(error)  # names its own remedy
        reason = str(cause) if cause else f"{type(error).__name__}: {first_line(error)}; {_remedy(item)}."
        lost = "CUDA error" in str(error)  # every later call of this process would fail too
    done = _outcome(item, status, reason, time.monotonic() - started)
    shown = [dataclasses.asdict(f) | {"value": f.value if math.isfinite(f.value) else "not finite"} for f in found]
    return done | {"findings": shown, "results": results, "traceback": trace, "device_lost": lost}


def _outcome(item: Item, status: str, reason: str, seconds: float) -> dict[str, Any]:
    empty: dict[str, Any] = {"findings": [], "results": {}, "traceback": ""}
    return {"item": list(item), "status": status, "reason": reason, "seconds": round(seconds, 2), **empty}


def _run(item: Item, device: str, quick: bool, folder: Path) -> tuple[list[CheckedValue], dict[str, Any]]:
    part, name, compiled = item
    if part in ("resume", "devices"):
        place = folder / part
        _remove(place)
        runs: Callable[..., list[CheckedValue]] = run_checks.resumed if part == "resume" else run_checks.divided
        found = runs(device, place)
        _remove(place)
        return found, {}
    if part == "memory":
        return _memory(name, device), {}
    factory = load_own_attention(name)
    if part == "speed":
        return [], _speed(name, factory, device, quick, compiled)
    if part == "padding":
        return device_checks.padding(factory, device, device_checks.AWKWARD[: 2 if quick else None]), {}
    return device_checks.parity(factory, device) + device_checks.refreshing(factory, device), {}


def _speed(name: str, factory: Any, device: str, quick: bool, compiled: bool) -> dict[str, Any]:
    """Milliseconds, tokens a second and peak memory of training one layer, and the same of flash softmax."""
    sizes: dict[str, Any] = {"length": 4096, "dim": 512, "heads": 8, "batch": 8, "dtype": torch.bfloat16}
    if device == "cpu":
        sizes = {"length": 512, "dim": 128, "heads": 4, "batch": 1, "dtype": torch.float32}
    setting = Setting(level="layer", mode="training", device=device, compiled=compiled, **sizes)
    measured = measure({"flash softmax": PlainSoftmax, name: factory}, setting, rounds=3 if quick else 10)
    tokens, flash = setting.batch * setting.length, measured["flash softmax"]
    rows = {
        side: {
            "milliseconds": 1e3 * m.timing.median, "tokens_per_second": tokens / m.timing.median,
            "peak_mib": m.peak / 2**20, "times_flash": flash.timing.ratio(m.timing),
        }
        for side, m in measured.items()
    }  # fmt: skip
    shape = f"n={setting.length}, d={setting.dim}, {setting.heads} heads, batch {setting.batch}, {setting.dtype}"
    return {"setting": shape, "rows": rows}


def _memory(name: str, device: str) -> list[CheckedValue]:
    """The peak of a real training step over its estimate, on a CPU of a small model and in full precision only."""
    small = ("scale=laptop",) if device == "cpu" else ()
    setting = setting_of((*MEASURED[name], *small), Compositions())
    spec = spec_of(setting.data)
    module = instantiate(without_weights(setting.module), _convert_="all")(spec=spec).to(device).train()
    rows, found = (2, []) if device == "cpu" else (setting.data["batch_size"] // 4, [])
    for precision in ("32-true",) if device == "cpu" else ("32-true", "bf16-mixed"):
        estimate = step_peak(module, spec, rows, precision, states=0, device=torch.device(device).type)
        share = real_peak(module, spec, rows, precision, device) / estimate
        found.append(CheckedValue(f"peak of {rows} rows, {precision}, over its estimate", share, 1 / USABLE))
    return found


def _remove(place: Path) -> None:
    import shutil

    shutil.rmtree(place, ignore_errors=True)
