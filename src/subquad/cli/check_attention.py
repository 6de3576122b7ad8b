"""Checks an attention: the tests of its contract, the growth of its cost with n, and its error relative to softmax.

python scripts/check_attention.py attention=luna
python scripts/check_attention.py attention=my_package.my_module:MyAttention   # a class of your own
python scripts/check_attention.py attention=my_module:MyAttention attention.k=32   # with a setting of it
python scripts/check_attention.py attention=dba contract=false lengths=[1024,4096]
python scripts/check_attention.py attention=all contract=false                 # or attention=dba,luna
python scripts/check_attention.py backbone=s4                                  # s4d, s4_dba, tlb, blrp
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from subquad.backbones.encoder import is_standalone
from subquad.cli.command import listed, script_settings
from subquad.config.choices import options
from subquad.config.compose import load_factory, load_own_attention
from subquad.measure.scaling import (
    LENGTHS,
    LINEAR_MEMORY,
    LINEAR_TIME,
    error_to_softmax,
    is_linear,
    scaling,
    stated_complexity,
)
from subquad.utils.cores import usable_cores
from subquad.utils.display import CHECKOUT
from subquad.utils.errors import UserError, explain

TESTS = CHECKOUT / "tests" if CHECKOUT else Path(__file__).parents[1] / "contract"
"""The folder of the contract's tests: tests/ of a checkout, or the installed package subquad.contract."""
CONTRACTS = (
    "attention/test_contract.py", "attention/test_derivatives.py", "attention/test_export.py",
    "backbones/test_encoders.py",
)  # fmt: skip
COLOURS = {"holds": "green", "fails": "red", "unsure": "yellow"}
_MASKS = "zero_padding, count, masked_mean or masked_softmax of subquad.ops.masks"
_BY_TORCH = "by_torch() of subquad.utils.derivatives"
_BRANCH = "shapes of tensors instead of .item(), .tolist(), numpy and branches on values"
REMEDIES = {
    "test_each_wiring_works_or_is_refused": "name in `patterns` the wirings that the class has.",
    "test_configured_sizes_run": "return one token of width site.dim for each token of x, whatever site says.",
    "test_padding_is_invisible": f"leave padded tokens of the context out of every sum, with {_MASKS}.",
    "test_padded_equals_trimmed": f"let no number depend on the padded length; count real tokens, with {_MASKS}.",
    "test_padding_may_be_anywhere": f"let the mask say which tokens are real, with {_MASKS}.",
    "test_mask_of_true_equals_no_mask": "treat a mask that is None as one that is True everywhere.",
    "test_rows_are_independent": "reduce over tokens or channels, never over the batch.",
    "test_rows_of_padding_stay_finite": f"do not divide by 0 real tokens: use {_MASKS}.",
    "test_eval_is_deterministic_and_changes_nothing": "draw numbers and update buffers only where self.training.",
    "test_state_dict_is_all_there_is": "keep state in parameters and buffers (register_buffer), not in attributes.",
    "test_the_carry_is_no_parameter": "hand on a result, not a parameter or a view of one.",
    "test_every_parameter_learns": "use every parameter; detach, argmax and factors of 0 pass no gradient on.",
    "test_shorter_sequences_work": "return a tensor of the shape of x, bound divisors away from 0, and cut weights of "
    "a fixed length to x.shape[1] and context.shape[1].",
    "test_longer_sequences_are_served_or_refused": "size nothing by site.query_len and site.context_len but by "
    "self.longest(x, context); or call self.fix_length in the constructor, and self.check_lengths(x, context) first.",
    "test_heads_that_do_not_divide_the_width_are_refused": "call super().__init__(site) first.",
    "test_gradcheck": "compute in the dtype of x, without operations in place on what the gradient needs.",
    "test_batches_of_gradients": "mark a backward pass as one_at_a_time of subquad.utils.derivatives.",
    "test_gradients_of_gradients": f"mark a backward pass as first_order, and have operators of torch for {_BY_TORCH}.",
    "test_gradients_of_gradients_at_sizes_of_kernels": "mark a backward pass as first_order of subquad.utils."
    "derivatives, and the result of an operator without a second derivative by differentiated_once.",
    "test_transforms_of_functions": f"use no `out=`, and no autograd function for {_BY_TORCH}.",
    "test_checkpointed_layers_have_the_same_gradients": "keep nothing between calls; return it as the carry.",
    "test_copies_give_the_same": "keep state in parameters and persistent buffers, and no lambdas in attributes.",
    "test_parametrised_weights_act": "read the weights of maps at each call, not in the constructor.",
    "test_long_inputs_fit_into_float16": "take means in place of sums over the tokens, or sum in float32.",
    "test_bf16_stays_close": "compute sums and exponentials of many terms in float32, and return the dtype of x.",
    "test_mixed_precision_of_a_gpu_stays_finite": "compute sums and exponentials of many terms in float32.",
    "test_compiles_to_one_graph": f"use {_BRANCH}.",
    "test_a_trace_agrees": f"use {_BRANCH}.",
    "test_compiled_to_one_graph_of_any_size_it_agrees": f"use {_BRANCH}.",
    "test_an_export_agrees_at_every_size_that_it_supports": f"use {_BRANCH}; or name the limit in `cannot_export`.",
    "test_an_axis_that_it_cannot_export_fails": "take what exports out of `cannot_export`.",
    "test_onnx_agrees": "use operators that ONNX has, or name `onnx` in `cannot_export`.",
    "test_dropout_acts_in_training_only": "apply site.dropout with nn.Dropout, or only where self.training.",
    "test_state_goes_through_safetensors": "share no memory between parameters or buffers.",
    "test_weights_do_not_depend_on_the_length": "make no parameter from max_len, or none that its length changes.",
}
"""What to do, by the name of the test of the contract that fails."""
_OVERFLOW = (
    "a constant such as -1e30 is too large for float16; mask with torch.finfo(x.dtype).min, or use masked_softmax of "
    "subquad.ops.masks."
)
console = Console(width=110, highlight=False)


def main() -> int:
    """Prints a report of each attention; returns 1 if a test fails or a cost stated as linear grows faster.

    Inconclusive times are not a failure.
    """
    defaults = {"attention": "dba", "backbone": None, "contract": True, "lengths": list(LENGTHS)}
    settings = [argument for argument in sys.argv[1:] if argument.lstrip("+").startswith(("attention.", "backbone."))]
    config = script_settings(defaults, [argument for argument in sys.argv[1:] if argument not in settings])
    torch.set_num_threads(usable_cores())
    names = options("attention") if config.attention == "all" else listed(config.attention)
    if config.backbone is not None:
        names = [f"backbone={name}" for name in listed(config.backbone)]
    if settings and len(names) > 1:
        raise UserError(f"{settings[0]} belongs to one of {', '.join(names)}; check that one alone.")
    failed = [name for name in names if _report(name, settings, config)]
    return int(bool(failed))


def _report(name: str, settings: Sequence[str], config: Any) -> bool:
    factory = load_factory(name, settings) if "=" in name else load_own_attention(name, settings)
    mechanism = getattr(factory, "func", factory)
    patterns = [] if is_standalone(factory) else sorted(pattern.value for pattern in mechanism.patterns)
    console.print(f"[bold]{' '.join((name, *settings))}[/] ({mechanism.__module__}.{mechanism.__name__})")
    stated = stated_complexity(factory) or "no complexity"
    console.print(f"wirings: {', '.join(patterns) or 'a whole model'}; stated: {stated}\n")
    failed = _contract(name, settings) if config.contract else False
    if list(config.lengths):
        failed |= _scaling(factory, list(config.lengths))
    error = error_to_softmax(factory)
    distance = "not an approximation of softmax" if error is None else f"{error:.3f} (relative, random input, n=512)"
    console.print(f"Error to softmax with the same projections: {distance}\n")
    return failed


def _contract(name: str, settings: Sequence[str]) -> bool:
    """Runs the tests of the contract and prints one line for each; returns whether one failed."""
    try:
        import beartype  # noqa: F401
        import pytest  # noqa: F401
    except ModuleNotFoundError as error:
        console.print(f"The contract is left out: {explain(error)}\n", markup=False)
        return False
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        arguments = ["-q", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={report}", "--attention", name]
        arguments += [f"--setting={setting}" for setting in settings]
        arguments += ["--rootdir", str(TESTS), "-c", os.devnull, "-W", "error"]
        tests = [str(TESTS / path) for path in CONTRACTS]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments, *tests], capture_output=True, text=True, check=False
        )
        cases = list(ElementTree.parse(report).getroot().iter("testcase")) if report.exists() else []
        if not cases:
            raise UserError(f"The contract did not run: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    cells: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
    for case in cases:
        test, _, cell = case.get("name", "").partition("[")
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        wiring = next(
            (pattern for pattern in ("self", "cross") if cell.split("]")[0].endswith(pattern)), cell.rstrip("]")
        )
        cells[test].append((wiring, None if problem is None else str(problem.get("message")).splitlines()[0]))
    console.print(f"The contract, {len(cases)} tests:")
    for test, outcomes in cells.items():
        broken = [f"{wiring}: {message}" for wiring, message in outcomes if message]
        mark = "[red]fails[/]" if broken else "[green]holds[/]"
        console.print(f"  {mark}  {test.removeprefix('test_').replace('_', ' ')}")
        for line in broken:
            console.print(f"         {line[:200]}", markup=False)
        for remedy in dict.fromkeys(filter(None, (_remedy(test, line) for line in broken))):
            console.print(f"         Remedy: {remedy}", markup=False)
    console.print()
    return any(message for outcomes in cells.values() for _, message in outcomes)


def _remedy(test: str, message: str) -> str:
    """What to do about a failure, by its message or else by its test; empty if that is not known."""
    if "without overflow" in message:
        return _OVERFLOW
    return REMEDIES.get("test_shorter_sequences_work" if "must match the size of tensor" in message else test, "")


def _scaling(factory: Any, lengths: list[int]) -> bool:
    """Prints time and memory at each length and fitted exponents; returns whether a linear mechanism grows faster."""
    if len(set(lengths)) < 2:
        raise UserError("Scaling needs two lengths or more, as in lengths=[1024,4096]; lengths=[] leaves it out.")
    measured = scaling(factory, lengths)
    console.print(
        f"Scaling of one {'model' if is_standalone(factory) else 'layer'}, width 64, 2 heads, batch 1, inference:"
    )
    for n in lengths:
        console.print(f"  n={n:<6} {1e3 * measured.seconds[n]:9.2f} ms {measured.peak[n] / 2**20:9.2f} MiB at the peak")
    linear = is_linear(stated_complexity(factory))
    limit = f" (limits {LINEAR_TIME} and {LINEAR_MEMORY})" if linear else ""
    mark = f"[{COLOURS[measured.linear]}]{measured.linear}[/]  " if linear else ""
    low, high = measured.time_exponents
    console.print(
        f"  {mark}time grows as n^{measured.time_exponent:.2f} ({low:.2f} to {high:.2f} by half of the rounds), "
        f"memory as n^{measured.memory_exponent:.2f}{limit}"
    )
    if linear and measured.linear == "unsure":
        console.print(
            "  The times are inconclusive: the machine is busy or the inputs are short. Run again, or raise lengths."
        )
    console.print()
    return linear and measured.linear == "fails"
