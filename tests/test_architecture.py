"""Rules of the code that `make check` does not see: short files, programs of a few lines, nothing left undone."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from conftest import CONFIGS

from subquad.cli.__main__ import commands

ROOT = CONFIGS.parent
ENTRY_POINTS = [ROOT / "train.py", ROOT / "eval.py"]
PACKAGE = sorted((ROOT / "src").rglob("*.py"))
PROGRAMS = [*PACKAGE, *sorted((ROOT / "scripts").glob("*.py")), *ENTRY_POINTS]
ALL = [*PROGRAMS, *sorted((ROOT / "tests").rglob("*.py")), *sorted(CONFIGS.rglob("*.yaml"))]


def test_no_file_is_longer_than_400_lines():
    lengths = {path: len(path.read_text().splitlines()) for path in ALL}
    assert {path: n for path, n in lengths.items() if n > 400} == {}
    assert len(lengths) > 100


def test_every_command_has_its_program_of_a_few_lines():
    """And each module of subquad.cli that is no helper is a command."""
    for name in commands():
        program = ROOT / f"{name}.py" if name in ("train", "eval") else ROOT / "scripts" / f"{name}.py"
        assert f'run("{name}")' in program.read_text()
        assert len(program.read_text().splitlines()) < 10
        assert callable(import_module(f"subquad.cli.{name}").main)


def test_nothing_is_left_undone():
    unfinished = re.compile(r"\b(NotImplementedError|TO" + "DO|FIX" + "ME|XX" + r"X)\b")
    assert {path: found for path in PROGRAMS if (found := unfinished.findall(path.read_text()))} == {}


def overridden(node: ast.ClassDef) -> bool:
    """Whether methods of the class may take their description from what they override."""
    return bool(node.bases)


def test_everything_public_is_described():
    texts = {path: path.read_text() for path in PACKAGE}
    assert {path: bare for path, text in texts.items() if text.strip() and (bare := undescribed(text))} == {}


def undescribed(text: str) -> list[str]:
    """What lacks a docstring in a module: itself, its public classes and functions, and their methods."""
    tree = ast.parse(text)
    bare = [] if ast.get_docstring(tree) else ["the module"]
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            bare.append(node.name)
        if isinstance(node, ast.ClassDef) and not overridden(node):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            bare += [m.name for m in methods if not m.name.startswith("_") and not ast.get_docstring(m)]
    return bare


def test_programs_answer_help_before_anything_heavy_is_imported():
    code = (
        "import sys; import subquad.config.compose, subquad.config.fingerprint, subquad.records; "
        "print([name for name in ('torch', 'pytorch_lightning', 'sktime', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_torchvision_is_imported_by_whoever_comes_first():
    """Also beside a torch without CUDA, as in the lock file."""
    done = subprocess.run([sys.executable, "-c", "import subquad, timm"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def unsafe_calls(path: Path) -> list[str]:
    """Calls in a file that may run code from the data that they read."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name, given = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
        needed = {"torch.load": ("weights_only", "True"), "np.load": ("allow_pickle", "False")}.get(name)
        if name.endswith("Tokenizer.from_pretrained"):
            needed = ("trust_remote_code", "False")
        refused = {"yaml.load", "yaml.unsafe_load", "pickle.load", "eval", "exec", "joblib.load", "pd.read_pickle"}
        in_memory = path.parent.name == "config" and name == "pickle.loads"  # copies of the process's own objects
        if (
            (needed and given.get(needed[0]) != needed[1])
            or name in refused
            or name.endswith("extractall")
            or (name == "pickle.loads" and not in_memory)
            or given.get("shell") == "True"
        ):
            found.append(f"{path.name}:{node.lineno}: {name}")
    return found


@pytest.mark.slow
def test_no_file_from_outside_can_run_code():
    assert [call for path in PROGRAMS for call in unsafe_calls(path)] == []


def test_unsafe_calls_are_found(tmp_path):
    path = tmp_path / "a.py"
    calls = (
        "torch.load(a)", "np.load(a)", "pickle.loads(a)", "x.extractall()", "run(a, shell=True)",
        "AutoTokenizer.from_pretrained(a)",
    )  # fmt: skip
    path.write_text("\n".join(calls))
    assert len(unsafe_calls(path)) == len(calls)
