"""Bugs that the attention tests must catch: `python tests/mutations.py [word]` plants each and runs the tests on it.

Each bug is a line of the package changed in a temporary copy. When the contract or a test changes, run this once:
a bug that is MISSED means that a test has lost its teeth.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Bug(NamedTuple):
    """`old`, which occurs once in `file`, becomes `new`."""

    name: str
    file: str
    old: str
    new: str


BUGS = [
    # The shared floor.
    Bug(
        "softmax forgets the mask",
        "ops/masking.py",
        "logits.masked_fill(~mask, torch.finfo(logits.dtype).min)",
        "logits",
    ),
    Bug(
        "a row without tokens reads the mean",
        "ops/masking.py",
        "return weights.masked_fill(~mask, 0)",
        "return weights",
    ),
    Bug("padding is not zeroed", "ops/masking.py", "x if mask is None else x.masked_fill(~mask[..., None], 0)", "x"),
    Bug("mean pooling counts padding", "ops/pooling.py", "real.sum(2, keepdim=True).clamp(min=1).to(x.dtype)", "size"),
    Bug("max pooling sees padding", "ops/pooling.py", ".masked_fill(~real[..., None], torch.finfo(x.dtype).min)", ""),
    Bug(
        "heads merged on the wrong axis",
        "attention/base.py",
        "y.transpose(1, 2).flatten(-2)",
        "y.permute(0, 2, 3, 1).flatten(-2)",
    ),
    Bug("one token too many is accepted", "attention/base.py", "if got > limit:", "if got > limit + 1:"),
    Bug(
        "an undeclared wiring is accepted",
        "attention/base.py",
        "if site.pattern not in self.patterns:",
        "if not self.patterns:",
    ),
    Bug("heads need not divide the width", "attention/base.py", "if site.dim % site.heads:", "if False:"),
    Bug(
        "the carry of others is dropped",
        "attention/base.py",
        "return self.attend(x, context, masks), carry",
        "return self.attend(x, context, masks), None",
    ),
    # Softmax and linear.
    Bug("fused softmax forgets the mask", "attention/softmax.py", "attn_mask=keys, ", ""),
    Bug(
        "dropout acts in eval",
        "attention/softmax.py",
        "self.site.dropout if self.training else 0.0",
        "self.site.dropout",
    ),
    Bug("scale of the whole width", "attention/softmax.py", "math.sqrt(q.shape[-1])", "math.sqrt(self.site.dim)"),
    Bug("linear attention forgets the mask", "attention/linear.py", "if masks.context is not None:", "if False:"),
    Bug("linear attention has no epsilon", "attention/linear.py", "denominator + self.eps", "denominator"),
    Bug(
        "rows of a batch are mixed",
        "attention/linear.py",
        "k.sum(-2)",
        "k.sum(-2).mean(0, keepdim=True).expand(len(k), -1, -1)",
    ),
    Bug(
        "training calls are counted in a Python attribute",
        "attention/linear.py",
        "q, k = F.elu(q) + 1, F.elu(k) + 1",
        'self.calls = getattr(self, "calls", 0) + self.training; q, k = F.elu(q) + 1 + self.calls, F.elu(k) + 1',
    ),
    # Linformer.
    Bug("no mask before compressing", "attention/linformer.py", "        x = zero_padding(x, mask)\n", ""),
    Bug(
        "no mask after projecting",
        "attention/linformer.py",
        "p.split(zero_padding(linear(x), mask))\n",
        "p.split(linear(x))\n",
    ),
    Bug(
        "bias counted at padding",
        "attention/linformer.py",
        "e.sum(1) if mask is None else mask.to(e.dtype) @ e.mT",
        "e.sum(1)",
    ),
    Bug("bias as if rows of E summed to 1", "attention/linformer.py", "total[..., None] * bias", "bias"),
    Bug("short input uses the last columns", "attention/linformer.py", "m[:, : x.shape[1]]", "m[:, -x.shape[1] :]"),
    Bug(
        "values compressed by E",
        "attention/linformer.py",
        "masks.context, value_map, p.value",
        "masks.context, key_map, p.value",
    ),
    Bug("E and F shared where they are not", "attention/linformer.py", '("none", "headwise") else', '("none",) else'),
    Bug(
        "empty windows are slots",
        "attention/linformer.py",
        "None if slots is None else slots[:, None, None, :]",
        "None",
    ),
    Bug(
        "the shared map is not handed on",
        "attention/linformer.py",
        "return [own], [own], own",
        "return [own], [own], carry",
    ),
    Bug(
        "windows too small for k slots",
        "attention/linformer.py",
        "math.ceil(site.context_len / self.slots[0])",
        "site.context_len // self.slots[0]",
    ),
    # Luna.
    Bug("Luna's carry is its pack only", "attention/luna.py", "self.norm(latent + packed)", "self.norm(packed)"),
    Bug(
        "Luna hands its latent on unchanged",
        "attention/luna.py",
        "carry if self.norm is None else self.norm(latent + packed)",
        "latent",
    ),
    Bug(
        "narrow pack forgets the mask",
        "attention/luna.py",
        "masked_softmax(compressor @ context[:, None].mT, keys)",
        "(compressor @ context[:, None].mT).softmax(-1)",
    ),
    Bug(
        "wide pack forgets the mask",
        "attention/luna.py",
        "masked_softmax(queries @ self._split(self.pack_key(context)).mT, keys)",
        "(queries @ self._split(self.pack_key(context)).mT).softmax(-1)",
    ),
    Bug("short sequences read all latents", "attention/luna.py", "if not self.dynamic or (", "if True or ("),
    Bug(
        "a short batch without a mask reads all latents",
        "attention/luna.py",
        "(mask is None and length >= self.l)",
        "mask is None",
    ),
    Bug(
        "query bias lost in the narrow form",
        "attention/luna.py",
        "logits = logits + (keys @ self.query.bias.view(self.heads, -1, 1)).mT",
        "logits = logits",
    ),
    Bug(
        "W_O bias lost in the narrow form",
        "attention/luna.py",
        "rows.flatten(1, 2) + self.out.bias",
        "rows.flatten(1, 2)",
    ),
    Bug("bias of a softmax over tokens", "attention/luna.py", "nn.Linear(dim, dim, bias=False)", "nn.Linear(dim, dim)"),
    # DBA.
    Bug("W'_c forgets the mask", "attention/dba.py", "w = w.masked_fill(~keep, 0)", "w = w * 1"),
    Bug(
        "normalised W'_c forgets the mask", "attention/dba.py", "return masked_softmax(w, keep)", "return w.softmax(-1)"
    ),
    Bug(
        "W_r and W_c forget the mask",
        "attention/dba.py",
        "masked_softmax(torch.cat([r, c], 1), keep)",
        "torch.cat([r, c], 1).softmax(-1)",
    ),
    Bug(
        "cross-attention forgets the mask of queries",
        "attention/dba.py",
        "None if masks.query is None else masks.query[:, None, :]",
        "None",
    ),
    Bug(
        "bias weight of the values dropped",
        "attention/dba.py",
        "self._project(x_v, self.value, w_c.sum(-1, keepdim=True))",
        "self._project(x_v, self.value)",
    ),
    Bug("division by padded length", "attention/dba.py", "w / count(mask, w.shape[-1])", "w / w.shape[-1]"),
    Bug("scale of all heads", "attention/dba.py", 'width if scale == "total" else width // self.maps', "width"),
    Bug("d_in rounded down", "attention/dba.py", "math.ceil(d_in / self.maps)", "(d_in // self.maps)"),
    Bug("keys reduced by the R of queries", "attention/dba.py", "self.r_key if key else self.r_query", "self.r_query"),
    Bug("Z is not renewed", "attention/dba.py", "self.norm(z + compressed)", "self.norm(z)"),
    Bug(
        "each layer its own Z despite the carry",
        "attention/dba.py",
        'owns = z_mode == "per_layer" or site.layer == 0',
        "owns = True",
    ),
    Bug(
        "Z is not mapped in cross-attention",
        "attention/dba.py",
        "self._compressor(self.guide(c_2), self.query)",
        "self._compressor(c_2, self.query)",
    ),
    Bug("W_O bias lost", "attention/dba.py", "y if self.out is None else y + self.out.bias", "y"),
    Bug(
        "bias of W'_r lost",
        "attention/dba.py",
        "recon_r + r_bias[:, None])\n        return y, self._pooled(x_r)",
        "recon_r)\n        return y, self._pooled(x_r)",
    ),
    Bug("no scale of the logits where asked", "attention/dba.py", "(dim // self.groups) ** -0.5", "1.0"),
]


def planted(bug: Bug, source: Path) -> None:
    """Changes the copy of the package."""
    path = source / "subquad" / bug.file
    text = path.read_text()
    if text.count(bug.old) != 1:
        raise SystemExit(f"{bug.name}: `{bug.old}` occurs {text.count(bug.old)} times in {bug.file}; mend BUGS.")
    path.write_text(text.replace(bug.old, bug.new))


def first_failure(source: Path) -> str | None:
    """The first attention test that fails on a copy of the package; None when all pass."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", "--no-header"]
    selected = ["tests/attention", "-k", "not compiles and not own_class"]
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*pytest, *selected], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) \S*?(\w+\.py(?:::\S+)?)", done.stdout, re.MULTILINE)
    return found.group(1) if found else done.stdout[-500:] + done.stderr[-500:]


def main(word: str = "") -> int:
    """Prints one line for each bug whose name holds the word; 1 when one is missed."""
    missed = 0
    for bug in [None, *(bug for bug in BUGS if word in bug.name)]:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "src"
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
            if bug is None:
                if failure := first_failure(source):
                    raise SystemExit(f"The tests fail without a bug: {failure}.")
                continue
            planted(bug, source)
            failure = first_failure(source)
        missed += failure is None
        print(f"{'MISSED' if failure is None else 'CAUGHT'}  {bug.name:55} {failure or ''}", flush=True)  # noqa: T201
    return min(missed, 1)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
