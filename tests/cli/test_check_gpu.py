"""The check of a GPU: what it accepts, what it must find, and the whole procedure on a CPU."""

import json

import pytest
import torch
from conftest import made, mechanisms
from omegaconf import OmegaConf
from runs import run_script

from subquad.attention.base import Projections, StatelessAttention
from subquad.cli.check_gpu import PARTS, _outcomes, check, main, planned
from subquad.measure.device_checks import padding, parity, refreshing
from subquad.specs import Pattern
from subquad.utils.errors import UserError


class Mean(StatelessAttention):
    """The mean of the real values."""

    patterns = frozenset(Pattern)
    complexity = "time O(n d²), memory O(n d)"

    def __init__(self, site):
        super().__init__(site)
        self.projections = Projections(site.dim, site.heads)

    def attend(self, x, context, masks):
        p, real = self.projections, 1.0
        if masks.context is not None:
            real = masks.context[..., None]
        weights = real * torch.ones_like(context[..., :1])
        mean = (weights * p.value(context)).sum(1, keepdim=True) / weights.sum(1, keepdim=True).clamp(min=1)
        return p.out(p.query(x) * mean + p.key(x))


class Leaky(Mean):
    """Reads padding."""

    def attend(self, x, context, masks):
        return super().attend(x, context, masks) + 0.01 * context.mean(1, keepdim=True)


class Imprecise(Mean):
    """Rounds in single precision, as TF32 does."""

    def attend(self, x, context, masks):
        y = super().attend(x, context, masks)
        return y.bfloat16().to(y.dtype) if y.dtype == torch.float32 else y


class Overflowing(Mean):
    """Exceeds the range of half precision."""

    def attend(self, x, context, masks):
        y = super().attend(x, context, masks)
        return y * 1e6 if y.dtype == torch.float16 else y


def broken(findings):
    return [finding.what for finding in findings if not finding.holds]


def test_a_sound_attention_passes():
    assert broken(parity(Mean, "cpu") + padding(Mean, "cpu", [129])) == []
    assert refreshing(Mean, "cpu") == []


def test_each_defect_is_found():
    assert "padding is invisible (self, 129 tokens)" in broken(padding(Leaky, "cpu", [129]))
    assert "outputs (self, float32)" in broken(parity(Imprecise, "cpu"))
    assert "outputs and gradients are finite (cross, 129 tokens, float16)" in broken(padding(Overflowing, "cpu", [129]))


@pytest.mark.release
@pytest.mark.parametrize("name", mechanisms())
def test_every_attention_passes_on_a_cpu(name):
    factory = made("attention", name)
    assert broken([*parity(factory, "cpu"), *padding(factory, "cpu"), *refreshing(factory, "cpu")]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": ["paddin"]}, 'There is no part "paddin"; did you mean padding'),
        ({"attention": ["dbaa"]}, "There is no attention dbaa; did you mean dba"),
        ({"device": "tpu"}, "device is tpu; it takes cuda or cpu"),
        pytest.param(
            {"device": "cuda"}, "finds no CUDA device; install a driver and a torch for CUDA, or check the procedure",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)  # fmt: skip
def test_wrong_settings_are_answered(change, message):
    with pytest.raises(UserError, match=message):
        planned(settings(**change))


def settings(**changes):
    known = {"device": "cpu", "attention": "all", "parts": list(PARTS), "quick": False, "output": ""}
    return OmegaConf.create(known | changes)


def test_what_is_planned():
    items = planned(settings())
    assert {part for part, *_ in items} == set(PARTS)
    assert {name for part, name, _ in items if part == "parity"} == set(mechanisms())
    assert sum(part == "speed" for part, *_ in items) == 20
    assert planned(settings(attention="dba", parts="parity")) == [("parity", "dba", False)]


OWN = """
import os
from subquad.attention.softmax import Softmax

class Leaky(Softmax):
    def attend(self, x, context, masks):
        return super().attend(x, context, masks) + context.mean(1, keepdim=True)

class Dying(Softmax):
    def attend(self, x, context, masks):
        os._exit(3)
"""


@pytest.mark.slow
def test_the_whole_procedure_on_a_cpu(data, outputs):
    """Sound, broken and dying attentions; what passed is kept when the command is repeated."""
    (outputs.parent / "own.py").write_text(OWN)
    names = "attention=[softmax,own:Leaky,own:Dying]"
    words = ("gpu", "device=cpu", "quick=true", "parts=[parity,padding,resume]", names, f"output={outputs}")
    done = run_script(data, outputs, "scripts/check.py", *words)
    assert done.returncode == 1, done.stderr
    [file] = outputs.rglob("check.json")
    state = json.loads(file.read_text())
    found = {tuple(check["item"][:2]): check for check in state["checks"]}
    passed = {item for item, check in found.items() if check["status"] == "passed"}
    assert passed == {("parity", "softmax"), ("padding", "softmax"), ("parity", "own:Leaky"), ("resume", "")}
    assert "padding is invisible" in found["padding", "own:Leaky"]["reason"]
    assert "the process ended with status 3" in found["parity", "own:Dying"]["reason"]
    assert state["versions"]["torch"] == torch.__version__
    page = (file.parent / "index.html").read_text()
    assert "3 failed, 0 skipped, 4 passed" in page
    assert "is not safe with padding on this device: report it" in page
    again = run_script(data, outputs, "scripts/check.py", *words)
    assert again.returncode == 1
    assert "7 checks" in again.stdout
    assert "4 finished before" in again.stdout
    assert "passed   parity softmax" not in again.stdout


@pytest.mark.slow
def test_several_processes_check_everything_once(monkeypatch, tmp_path):
    """One of them ends in the middle of a check."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("subquad.cli.check_gpu.usable_cores", lambda: 4)
    names = ["softmax", "own:Dying", "linear", "dba", "fnet"]
    items = [("parity", name, False) for name in names]
    found = {tuple(done["item"]): done["status"] for done in _outcomes(items, "cpu", True, tmp_path)}
    assert found == {item: "failed" if item[1] == "own:Dying" else "passed" for item in items}


def test_a_narrower_selection_keeps_what_was_found_before(monkeypatch, tmp_path):
    empty = {"status": "passed", "seconds": 0, "reason": "", "findings": [], "results": {}, "traceback": ""}

    def outcomes(items, *_):
        yield from ({"item": [*item]} | empty for item in items)

    monkeypatch.setattr("subquad.cli.check_gpu._outcomes", outcomes)
    monkeypatch.setenv("SUBQUAD_OUTPUTS", str(tmp_path))
    for name in ("softmax", "linear"):
        monkeypatch.setattr("sys.argv", ["check_gpu.py", "device=cpu", "parts=[parity]", f"attention=[{name}]"])
        assert main() == 0
    [file] = (tmp_path / "check").rglob("check.json")
    assert [done["item"][1] for done in json.loads(file.read_text())["checks"]] == ["softmax", "linear"]


def test_a_check_that_raises_or_runs_out_of_memory_is_an_outcome(monkeypatch, tmp_path):
    def exhaust(factory, device):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr("subquad.measure.device_checks.parity", exhaust)
    done = check(("parity", "dba", False), "cpu", True, tmp_path)
    assert done["status"] == "failed"
    assert done["reason"].startswith("Out of memory (CUDA out of memory. Tried to allocate 2 GiB); end other programs")
    assert "exhaust" in done["traceback"]


def test_a_missing_package_is_no_wrong_estimate(monkeypatch, tmp_path):
    def without(*_):
        raise ModuleNotFoundError("No module named 'transformers'", name="transformers")

    monkeypatch.setattr("subquad.cli.check_gpu._run", without)
    done = check(("memory", "softmax", False), "cpu", True, tmp_path)
    assert done["status"] == "failed"
    assert "transformers" in done["reason"]
    assert "pip install" in done["reason"]
    assert "estimates" not in done["reason"]


@pytest.mark.gpu
@pytest.mark.parametrize("item", planned(settings()), ids=lambda item: "-".join(map(str, item)))
def test_this_gpu(item, tmp_path):
    """The checks of `subquad check gpu`, in this process."""
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    done = check(item, "cuda", False, tmp_path)
    assert done["status"] != "failed", f"{done['reason']}\n{done['traceback']}"
