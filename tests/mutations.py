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


def plant(bug: Bug, source: Path) -> None:
    """Changes the copy of the package."""
    path = source / "subquad" / bug.file
    text = path.read_text()
    if text.count(bug.old) != 1:
        raise SystemExit(
            f"{bug.name}: `{bug.old}` occurs {text.count(bug.old)} times in {bug.file}; mend tests/planted."
        )
    path.write_text(text.replace(bug.old, bug.new))


def tests_of(file: str) -> tuple[str, str]:
    """Which tests to select for a bug: those of the mechanism's own file and configurations, or all."""
    stem = Path(file).stem
    if Path(file).parent.name in ("backbones", "blocks"):
        return "tests/backbones", "not compiles"
    if not file.startswith("attention/") or stem == "base":
        return "tests/attention", ALL
    target = f"subquad.attention.{stem}."
    configs = [path for path in (ROOT / "configs/attention").glob("*.yaml") if target in path.read_text()]
    names = {stem, *(path.stem for path in configs)}
    return "tests/attention", f"({' or '.join(sorted(names))}) and {ALL}"


def first_failure(source: Path, folder: str, selection: str) -> str | None:
    """The first of the selected tests that fails on a copy of the package; None when all pass."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", "--no-header"]
    selected = [folder, "-k", selection]
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*pytest, *selected], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) \S*?(\w+\.py(?:::\S+)?)", done.stdout, re.MULTILINE)
    return found.group(1) if found else done.stdout[-500:] + done.stderr[-500:]


def main(word: str = "") -> int:
    """Prints one line for each bug whose file or name holds the word; 1 when one is missed."""
    missed, chosen = 0, [bug for bug in bugs() if word in f"{bug.file} {bug.name}"]
    selections = {tests_of(bug.file) for bug in chosen}
    for bug in [None, *chosen]:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "src"
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
            (Path(folder) / "configs").symlink_to(ROOT / "configs")
            if bug is None:
                for tests in selections:
                    if failure := first_failure(source, *tests):
                        raise SystemExit(f"The tests fail without a bug: {failure}.")
                continue
            plant(bug, source)
            failure = first_failure(source, *tests_of(bug.file))
        missed += failure is None
        print(f"{'MISSED' if failure is None else 'CAUGHT'}  {bug.name:55} {failure or ''}", flush=True)  # noqa: T201
    return min(missed, 1)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
