"""The rules of the house: short files, thin doors, floors that import downwards, nothing left undone."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CONFIGS

ROOT = CONFIGS.parent
DOORS = [ROOT / "train.py", ROOT / "eval.py"]
PACKAGE = sorted((ROOT / "src").rglob("*.py"))
PROGRAMS = [*PACKAGE, *sorted((ROOT / "scripts").glob("*.py")), *DOORS]
ALL = [*PROGRAMS, *sorted((ROOT / "tests").rglob("*.py")), *sorted(CONFIGS.rglob("*.yaml"))]


def test_no_file_is_longer_than_400_lines():
    lengths = {path: len(path.read_text().splitlines()) for path in ALL}
    assert {path: n for path, n in lengths.items() if n > 400} == {}
    assert len(lengths) > 100


def test_the_doors_are_thin():
    assert all(len(path.read_text().splitlines()) < 60 for path in DOORS)


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


def test_floors_import_only_the_ones_below():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_answer_help_before_anything_heavy_is_imported():
    code = (
        "import sys; import subquad.run.doors, subquad.run.identity, subquad.records; "
        "print([name for name in ('torch', 'pytorch_lightning', 'sktime', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_torchvision_is_imported_by_whoever_comes_first():
    """Also beside a torch without CUDA, as in the lock file."""
    done = subprocess.run([sys.executable, "-c", "import subquad, timm"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
