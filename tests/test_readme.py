"""Every command that the documentation shows is run, smaller; every link leads somewhere."""

import inspect
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hydra.utils import get_object
from omegaconf import OmegaConf
from runs import LITTLE, answer

from subquad.config.choices import options
from subquad.config.compose import compose_run
from subquad.config.compositions import Compositions
from subquad.data.images import own_folder
from subquad.data.text.masked_text import MaskedText
from subquad.data.text.own_texts import OwnTexts
from subquad.data.text.own_tokens import OwnTokens
from subquad.data.time_series.time_series import TimeSeries
from subquad.results import benches
from subquad.results.cells import load_table
from subquad.results.store import Store

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SMALL = {
    "train.py": ["scale=smoke"],
    "scripts/bench.py": ["lengths=[16]", "rounds=1", "dims=[32]", "ffn=32", "layers=1", "levels=[layer]"],
    "scripts/prepare.py": ["scale=smoke", "data=synthetic"],
    "scripts/bench_data.py": ["task=[lra/listops]", "scale=smoke", "workers=0", "seconds=0.1"],
    "scripts/bench_long.py": ["lengths=[64]", "rounds=1", "dims=[32]"],
    "scripts/bench_peers.py": ["lengths=[64]", "rounds=1"],
    "scripts/bench_refresh.py": ["length=64", "rounds=1"],
    "scripts/bench_vision.py": ["size=32", "batch=1", "rounds=1", "modes=[training]"],
    "scripts/check_attention.py": ["contract=false", "lengths=[64,128]"],
    "scripts/check_gpu.py": ["device=cpu", "quick=true", "attention=[softmax]", "parts=[parity]"],
    "scripts/compare.py": ["scale=smoke", "attentions=[softmax,dba]", "rates=[1e-3]", "seeds=2", "hours=1"],
    "scripts/figure.py": ["scale=smoke"],
    "scripts/plan.py": ["scale=smoke", "data=synthetic", "rows=[DBA]", "columns=[Text]", "seeds=[0]"],
    "scripts/reproduce.py": ["scale=smoke", "data=synthetic", "rows=[DBA]", "columns=[Text]", "seeds=[0]"],
    "scripts/show_attention.py": ["length=16", "dim=16", "heads=2"],
}


def commands(pages: Sequence[Path] = tuple(PAGES)) -> list[str]:
    """The lines of all bash blocks, and python lines quoted in the text, without comments."""
    found = []
    for page in pages:
        text = page.read_text()
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
            found += [_of_a_checkout(line.split(" #")[0].strip()) for line in block.splitlines() if line.strip()]
        found += re.findall(r"`(python (?:train|eval|scripts/\w+)\.py [^`<]+)`", text)
    return sorted(set(found))


def _of_a_checkout(line: str) -> str:
    """A command of the installed package as the program of the checkout that it is."""
    name = re.match(r"subquad (\w+)", line)
    if name is None:
        return line
    program = f"{name[1]}.py" if name[1] in ("train", "eval") else f"scripts/{name[1]}.py"
    return f"python {program}{line[name.end() :]}"


def test_the_readme_has_its_two_commands() -> None:
    assert {"make demo", "make test"} <= set(commands())


def test_the_citation_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert OmegaConf.load(ROOT / "CITATION.cff").version == project["version"]


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("make ")])
def test_make_targets_exist(command: str) -> None:
    subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_shell_reads_the_commands(page: Path) -> None:
    lines = "".join(re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    assert subprocess.run(["bash", "-n"], input=lines, capture_output=True, text=True).stderr == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [t for t in targets if not (page.parent / t).exists()] == []


# tests/sweep/test_slurm_cluster.py runs what needs a cluster, tests/cli/test_installed.py what enters an own class.
LEFT_OUT = ("tests/", "slurm", " ... ", "my_module:")
RUNS = [c for c in commands() if re.match(r"([A-Z_]+=\w+ )*python [^-]", c) and not any(map(c.__contains__, LEFT_OUT))]
ONE_OF_EACH = {re.search(r"(\w+)\.py", c)[1]: c for c in reversed(RUNS)}
README = {c for c in {*RUNS} & {*commands(PAGES[:1])} if "compare.py" not in c}  # tests/planning/test_comparison.py
SHOWN = README | {command for name, command in ONE_OF_EACH.items() if name not in LITTLE}
"""The commands of README.md, and one of each program that tests/cli/test_installed.py does not run: continuous
integration runs these, a release all."""


def test_the_commands_of_the_page_on_clusters_compose() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    keys = {
        str(key) for name in ("slurm", "ray") for key in OmegaConf.load(ROOT / f"configs/hydra/launcher/{name}.yaml")
    }
    lines = re.findall(r"python train\.py -m hydra/launcher=(?:slurm|ray) (.*?)(?: +#.*)?$", page, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        words = [word for word in line.split() if not word.startswith("hydra.")]
        compose_run([word.partition(",")[0] for word in words])
    named = set(re.findall(r"hydra\.launcher\.(\w+)", page))
    assert named <= keys
    assert {"partition", "account", "timeout_min", "num_gpus"} <= named


def run(words: list[str]) -> None:
    """Runs a program in this process, which saves the imports, or in its own where several processes train.

    A model whose types are checked, as in this process, does not compile.
    """
    if {"trainer=ddp", "trainer=fsdp", "trainer=ddp_cpu", "compile_model=true"} & {*words}:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    else:
        done = answer(*words)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec")  # inside torch, of Lightning's loaders
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method")  # inside torch.compile
@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[pytest.mark.slow, *[pytest.mark.release] * (c not in SHOWN)]) for c in RUNS]
)
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed, with the settings above appended; placeholders are filled with a run made here."""
    given, command = (
        re.findall(r"([A-Z_]+)=(\w+) ", command.partition("python ")[0]),
        command[command.index("python ") :],
    )
    places = {"SUBQUAD_OUTPUTS": str(tmp_path / "outputs"), "SUBQUAD_DATA": str(tmp_path / "data")}
    for name, value in (places | dict(given)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(ROOT)

    program, *words = shlex.split(command)[1:]
    words = _with_own_data(words, tmp_path)
    if "data.tokenizer=<tokenizer>" in words:
        [attention] = [word for word in words if word.startswith("attention=")]
        run(
            [
                "train.py",
                "task=mlm/text",
                f"data.folder={MaskedText.write_synthetic(tmp_path / 'texts')}",
                attention,
                "scale=smoke",
            ]
        )
        [record], [tokenizer] = (
            (tmp_path / "outputs").rglob("result.json"),
            (tmp_path / "data/tokenizers").glob("bpe-*"),
        )
        words = [word.replace("<run>", str(record.parent)).replace("<tokenizer>", str(tokenizer)) for word in words]
    monkeypatch.setattr("subquad.measure.machine._commit", lambda: "abc123")  # as of a clean checkout
    monkeypatch.setattr("subquad.results.store.FOLDER", tmp_path / "results")
    if program == "eval.py":
        words = [f"run={_trained(tmp_path)}"]
    if program == "scripts/predict.py":
        run_of_texts = _trained(tmp_path, "task=text/custom", "data=synthetic")
        words = [f"run={run_of_texts}" if word.startswith("run=") else word for word in words]
        words.append(f"output={tmp_path}/predictions.csv")
    words = [str(_trained(tmp_path)) if word == "outputs" else word for word in words]
    if program == "scripts/bench.py":
        words.append(f"output={tmp_path}")
        words = [w for w in words if not w.startswith(("lengths", "levels"))]
    words += ["data=synthetic"] * ("task=lra/retrieval" in words)
    if program == "scripts/bench_overhead.py":
        monkeypatch.setattr("subquad.cli.bench_overhead.ROUNDS", 1)
        words += ["task=uea/basic_motions", "scale=smoke"]
    words = [w for w in words if program != "train.py" or not w.startswith("scale=")]
    if {"trainer=ddp", "trainer=fsdp"} & {*words} and not torch.cuda.is_available():  # two processes without a GPU
        words = [w for w in words if not w.startswith("trainer.devices")]
        words += ["trainer.accelerator=cpu", "trainer.devices=2"]
    named = {word.partition("=")[0] for word in words}
    own = {"rows"} if "compare" in named else set()  # two rows are needed then
    if program == "scripts/reproduce.py" and "rows" in named:  # these cells are few, and their table has other columns
        own |= {*named, "columns"} - {"scale"}
    small = [word for word in SMALL.get(program, []) if word.partition("=")[0] not in own]
    run([program, *words, *_first_cell(words, small)])


def _with_own_data(words: list[str], folder: Path) -> list[str]:
    """The words with the paths of data that are made here."""
    kind = "regression" if "task=tser/custom" in words else "classification"
    makers: dict[str, Callable[[Path], object]] = {
        "/path/to/folder": lambda to: TimeSeries.write_synthetic(to, "Mine", kind, train=24, test=24),
        "/path/to/images": own_folder.write_synthetic,
        "/path/to/texts": MaskedText.write_synthetic,
        "/path/to/train.csv": lambda to: OwnTexts.write_synthetic(to.parent),
        "/path/to/new.csv": lambda to: to.write_text("text\na great film\n"),
        "/path/to/tokens": OwnTokens.write_synthetic,
    }
    for place in {word.partition("=")[2] for word in words if word.startswith("data")} & {*makers}:
        path = folder / "own" / Path(place).name
        (path.parent if path.suffix else path).mkdir(parents=True)
        makers[place](path)
    return [word.replace("/path/to", str(folder / "own")) for word in words]


def _first_cell(words: list[str], small: list[str]) -> list[str]:
    """The rows and columns of `small` replaced by those of the first cell, where one table has no such cell."""
    [name] = [word.partition("=")[2] for word in words if word.startswith("table=")] or [""]
    if name not in options("table"):
        return small
    table = load_table(name)
    shown = [cell for cell in table.cells if cell[1] in {column.name for column in table.columns}]
    row, column = ("DBA", "Text") if ("DBA", "Text") in shown else shown[0]
    cell = {"rows=[DBA]": f'rows=["{row}"]', "columns=[Text]": f'columns=["{column}"]'}
    return [cell.get(word, word) for word in small]


def _trained(folder: Path, *words: str) -> Path:
    """The folder of a small run."""
    run(["train.py", *(words or ["task=uea/basic_motions"]), "scale=smoke"])
    [record] = (folder / "outputs").rglob("result.json")
    return record.parent


def _keys(node: object, prefix: str = "") -> set[str]:
    """The keys of a configuration, with dots."""
    named = {prefix + str(key): value for key, value in node.items()} if isinstance(node, dict) else {}
    return set(named).union(*(_keys(value, f"{key}.") for key, value in named.items()))


@pytest.mark.slow
def test_the_index_of_deviations_names_keys_that_exist() -> None:
    page, key = (ROOT / "docs" / "deviations.md").read_text(), r"`\+?([a-z_]+(?:\.[a-z_]+)+)(?:=[^`]*)?`"
    rows = re.findall(r"^\| ((?:[^|\\]|\\.)*) \| ((?:[^|\\]|\\.)*) \|", page, re.MULTILINE)
    index = {name for first, _ in rows for name in re.findall(rf"^{key}$", first)}
    known = set()
    for path in (ROOT / "configs").rglob("*.yaml"):
        node = OmegaConf.to_container(OmegaConf.load(path))
        group = path.relative_to(ROOT / "configs").parts[0]
        known |= _keys(node, "" if "@package _global_" in path.read_text() else f"{group}.")
        if group in ("attention", "backbone", "scheduler") and isinstance(node, dict) and "_target_" in node:
            known |= {f"{group}.{name}" for name in inspect.signature(get_object(node["_target_"])).parameters}
    assert index - known == set(), "no configuration has these keys"
    assert {name for _, second in rows for name in re.findall(key, second)} - index == set(), "not in the index"


@pytest.mark.slow
def test_measured_numbers_of_the_documentation_are_those_of_the_store(
    real_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subquad.results.store.FOLDER", real_store)
    monkeypatch.setattr("subquad.results.benches.BENCHES", real_store / "bench")
    monkeypatch.syspath_prepend(ROOT / "scripts")
    from describe import measured

    assert [page.name for page, text in measured().items() if page.read_text() != text] == [], "run `make docs`"


@pytest.mark.slow
def test_what_the_project_keeps_is_neither_outdated_nor_damaged(real_store: Path) -> None:
    """What the test above composed is in the cache of this checkout."""
    kept = Store.read(real_store)
    assert kept.broken == []
    assert kept.outdated(Compositions()) == []
    assert sum(path.stat().st_size for path in real_store.rglob("*.jsonl")) < 10 * 2**20


@pytest.mark.slow
def test_generated_pages_are_current(monkeypatch: pytest.MonkeyPatch, real_store: Path) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setattr(benches, "BENCHES", real_store / "bench")
    from describe import DOCS, FACTS, about_task, modules, pages, split_docstring

    made = pages()
    assert [page.name for page, text in made.items() if not page.exists() or page.read_text() != text] == [], (
        "make docs"
    )
    assert set((DOCS / "attentions").glob("*.md")) <= made.keys(), "run `make docs`"
    for mechanism in {choice.mechanism for choices in modules().values() for choice in choices}:
        undescribed = (
            set(inspect.signature(mechanism).parameters) - {"site", "spec"} - split_docstring(mechanism)[1].keys()
        )
        assert not undescribed, f"{mechanism.__name__} has settings without a meaning in Args: {undescribed}"
    unexplained = [
        line for line in made[DOCS / "settings.md"].splitlines() if line.startswith("| `") and "|  |" in line[-5:]
    ]
    assert not unexplained, "describe it in the docstring of its class"
    for task in options("task"):
        missing = {"what", "metric", "train_rows", *FACTS} - about_task(task).keys()
        assert not missing, f"about: of configs/task/{task}.yaml has no {missing}"
