"""Bugs that the attention tests must catch: `python tests/mutations.py [word]` plants each and runs the tests on it.

Each bug is a line of the package changed in a temporary copy. When the contract or a test changes, run this once:
a bug that is MISSED means that a test has lost its teeth.
"""

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import planted
from planted import Bug

ROOT = Path(__file__).parents[1]
ALL = "not compiles and not own_class"


def bugs() -> list[Bug]:
    """All of tests/planted."""
    modules = [importlib.import_module(f"planted.{module.name}") for module in pkgutil.iter_modules(planted.__path__)]
    return [bug for module in modules for bug in module.BUGS]


def plant(bug: Bug, copy: Path) -> None:
    """Changes the copy of the repository."""
    path = copy / bug.file if bug.file.startswith("configs/") else copy / "src" / "subquad" / bug.file
    text = path.read_text()
    if text.count(bug.old) != 1:
        raise SystemExit(
            f"{bug.name}: `{bug.old}` occurs {text.count(bug.old)} times in {bug.file}; mend tests/planted."
        )
    path.write_text(text.replace(bug.old, bug.new))


def tests_of(bug: Bug) -> tuple[str, str]:
    """Which tests to select for a bug: those of the mechanism's own file and configurations, or all."""
    file, stem = bug.file, Path(bug.file).stem
    if bug.tests:
        return bug.tests, ALL
    if file.startswith("configs/attention/"):
        return "tests/attention", f"{stem} and {ALL}"
    if Path(file).parent.name in ("backbones", "blocks"):
        return "tests/backbones", "not compiles"
    if not file.startswith("attention/") or stem == "base":
        return "tests/attention", ALL
    target = f"subquad.attention.{stem}."
    configs = [path for path in (ROOT / "configs/attention").glob("*.yaml") if target in path.read_text()]
    names = {stem, *(path.stem for path in configs)}
    return "tests/attention", f"({' or '.join(sorted(names))}) and {ALL}"


def first_failure(copy: Path, folder: str, selection: str) -> str | None:
    """The first of the selected tests that fails on a copy of the package; None when all pass."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", "--no-header"]
    selected = [folder, "-k", selection]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*pytest, *selected], cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) \S*?(\w+\.py(?:::\S+)?)", done.stdout, re.MULTILINE)
    return found.group(1) if found else done.stdout[-500:] + done.stderr[-500:]


def copied(folder: Path) -> Path:
    """The repository without its history, data and results."""
    for part in ("src", "configs", "tests", "scripts", "docs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for part in ("pyproject.toml", "train.py", "eval.py", "README.md"):
        shutil.copy(ROOT / part, folder / part)
    return folder


def main(word: str = "") -> int:
    """Prints one line for each bug whose file or name holds the word; 1 when one is missed."""
    missed, chosen = 0, [bug for bug in bugs() if word in f"{bug.file} {bug.name}"]
    selections = {tests_of(bug) for bug in chosen}
    for bug in [None, *chosen]:
        with tempfile.TemporaryDirectory() as folder:
            copy = copied(Path(folder))
            if bug is None:
                for tests in selections:
                    if failure := first_failure(copy, *tests):
                        raise SystemExit(f"The tests fail without a bug: {failure}.")
                continue
            plant(bug, copy)
            failure = first_failure(copy, *tests_of(bug))
        missed += failure is None
        print(f"{'MISSED' if failure is None else 'CAUGHT'}  {bug.name:55} {failure or ''}", flush=True)  # noqa: T201
    return min(missed, 1)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
