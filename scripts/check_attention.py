"""What holds of an attention: its contract, how its cost grows with n, and its error to softmax.

python scripts/check_attention.py attention=luna
python scripts/check_attention.py attention=my_package.my_module:MyAttention   # a class of your own
python scripts/check_attention.py attention=dba contract=false lengths=[1024,4096]
python scripts/check_attention.py attention=all contract=false                 # or attention=dba,luna
"""

import importlib.util
import pkgutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from subquad.errors import UserError
from subquad.run.doors import ROOT, answer_help, load_attention, options, prepare_process, script_settings

answer_help(__doc__)
prepare_process(check_choices=False)

import torch  # noqa: E402  after prepare_process

from subquad.backbones.base import is_encoder  # noqa: E402
from subquad.cores import usable_cores  # noqa: E402
from subquad.measure.scaling import (  # noqa: E402
    LENGTHS,
    LINEAR_MEMORY,
    LINEAR_TIME,
    error_to_softmax,
    is_linear,
    scaling,
    stated_complexity,
)

CONTRACTS = [str(ROOT / "tests" / place) for place in ("attention", "backbones/test_encoders.py")]
COLOURS = {"holds": "green", "fails": "red", "unsure": "yellow"}
console = Console(width=110, highlight=False)


def main() -> int:
    """Prints a report of each; 1 when a test of the contract fails or a linear mechanism does not scale as one.

    Inconclusive times are not a failure.
    """
    defaults = {"attention": "dba", "contract": True, "lengths": list(LENGTHS)}
    config = script_settings(OmegaConf.create(defaults), sys.argv[1:])
    torch.set_num_threads(usable_cores())
    names = options("attention") if config.attention == "all" else config.attention.split(",")
    failed = [name for name in names if _report(name, config)]
    return int(bool(failed))


def _report(name: str, config: Any) -> bool:
    factory = _factory(name)
    mechanism = getattr(factory, "func", factory)
    wirings = "encoder" if is_encoder(factory) else ", ".join(sorted(pattern.value for pattern in mechanism.patterns))
    console.print(f"[bold]{name}[/] ({mechanism.__module__}.{mechanism.__name__})")
    console.print(f"wirings: {wirings}; stated: {stated_complexity(factory)}\n")
    failed = _contract(name) if config.contract else False
    if list(config.lengths):
        failed |= _scaling(factory, list(config.lengths))
    error = error_to_softmax(factory)
    stated = "not an approximation of softmax" if error is None else f"{error:.3f} (relative, random input, n=512)"
    console.print(f"Error to softmax with the same projections: {stated}\n")
    return failed


def _contract(name: str) -> bool:
    """Runs the contract on the mechanism and prints one line for each test; True at a failure."""
    if importlib.util.find_spec("pytest") is None:
        raise UserError(
            "The contract is a test suite; install it with: pip install -e '.[dev]' (or pass contract=false)."
        )
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-q", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={report}", "--attention", name]
        places = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), *CONTRACTS]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *places], capture_output=True, text=True, check=False
        )
        if not report.exists():
            raise UserError(f"The contract did not run: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    cells: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
    for case in cases:
        test, _, cell = case.get("name", "").partition("[")
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        wiring = next((word for word in ("self", "cross") if cell.split("]")[0].endswith(word)), cell.rstrip("]"))
        cells[test].append((wiring, None if problem is None else str(problem.get("message")).splitlines()[0]))
    console.print(f"The contract, {len(cases)} tests:")
    for test, found in cells.items():
        broken = [f"{wiring}: {message}" for wiring, message in found if message]
        mark = "[red]fails[/]" if broken else "[green]holds[/]"
        console.print(f"  {mark}  {test.removeprefix('test_').replace('_', ' ')}")
        for line in broken:
            console.print(f"         {line[:200]}", markup=False)
    console.print()
    return any(message for found in cells.values() for _, message in found)


def _scaling(factory: Any, lengths: list[int]) -> bool:
    """Prints seconds and bytes at each length and the fitted exponents; True when a linear mechanism grows faster."""
    if len(set(lengths)) < 2:
        raise UserError("Growth needs two lengths or more, as in lengths=[1024,4096]; lengths=[] leaves it out.")
    found = scaling(factory, lengths)
    console.print(
        f"Scaling of one {'encoder' if is_encoder(factory) else 'layer'}, width 64, 2 heads, batch 1, inference:"
    )
    for n in lengths:
        console.print(f"  n={n:<6} {1e3 * found.seconds[n]:9.2f} ms {found.peak[n] / 2**20:9.2f} MiB at the peak")
    linear = is_linear(stated_complexity(factory))
    limit = f" (limits {LINEAR_TIME} and {LINEAR_MEMORY})" if linear else ""
    mark = f"[{COLOURS[found.linear]}]{found.linear}[/]  " if linear else ""
    low, high = found.time_exponents
    console.print(
        f"  {mark}time grows as n^{found.time_exponent:.2f} ({low:.2f} to {high:.2f} by half of the rounds), "
        f"memory as n^{found.memory_exponent:.2f}{limit}"
    )
    if linear and found.linear == "unsure":
        console.print(
            "  The times are inconclusive: the machine is busy or the inputs are short. Run again, or raise lengths."
        )
    console.print()
    return linear and found.linear == "fails"


def _factory(name: str) -> Any:
    """The factory of a configured choice, or the object that module:name points to."""
    if ":" not in name:
        return load_attention(name)
    sys.path.insert(0, str(Path.cwd()))
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"attention={name}: {error}; write it as my_package.my_module:MyAttention.") from None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(str(error))
