"""What all tests share: shape checks, one thread, one seed, and the configs of a group."""

import gc
import signal
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import config as shape_checks
from jaxtyping import install_import_hook

gc.disable()  # imports and collection make millions of objects that stay: a look at them takes a fifth of the time

# Before the first import of the package: every annotated shape is checked while tests run.
install_import_hook(
    [f"subquad.{layer}" for layer in ("attention", "ops", "blocks", "backbones")], typechecker="beartype.beartype"
)

import torch  # noqa: E402
from hydra import compose, initialize_config_dir  # noqa: E402
from hydra.utils import instantiate  # noqa: E402
from omegaconf import DictConfig, OmegaConf  # noqa: E402

from subquad.config.choices import CONFIGS  # noqa: E402
from subquad.config.compose import load_factory, load_own_attention  # noqa: E402
from subquad.config.hydra_internals import parse_files_once  # noqa: E402
from subquad.results import benches, store  # noqa: E402
from subquad.utils.errors import UserError  # noqa: E402

RESULTS, store.FOLDER = store.FOLDER, Path(__file__).parent / "no_results"  # so that tests see only their own results
benches.BENCHES = store.FOLDER / "bench"

torch.set_num_threads(1)
parse_files_once()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a script runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or commands that tests interrupt would not end


def names(group: str) -> list[str]:
    """Every choice of a config group, by its file: a new YAML is a new test. Files that start with "_" are parts."""
    found = sorted(path.stem for path in (CONFIGS / group).glob("*.yaml") if not path.stem.startswith("_"))
    assert found, f"no configs in {CONFIGS / group}"
    return found


@cache
def mechanisms() -> list[str]:
    """The choices of attention."""
    return names("attention")


@cache
def encoders() -> list[str]:
    """The choices of backbone that take no attention."""
    return [name for name in names("backbone") if "attention" not in node("backbone", name)]


@cache
def node(group: str, name: str) -> DictConfig:
    """One choice of a group as Hydra composes it, with the files it inherits from."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose(f"{group}/{name}")
    return OmegaConf.select(config, group.replace("/", "."))


@cache
def made(group: str, name: str) -> Any:
    """The factory of a choice; the same object for all tests, which never change it.

    A partial of Hydra checks at each call that its class may be called; tests build thousands of layers.
    """
    factory = instantiate(node(group, name))
    return partial(factory.func, *factory.args, **factory.keywords) if isinstance(factory, partial) else factory


@cache
def encoder_factories() -> dict[str, Any]:
    """The factories of the choices of backbone that take no attention."""
    return {name: load_factory(f"backbone={name}") for name in encoders()}


@pytest.fixture
def real_store() -> Path:
    """The folder of the results that the project keeps."""
    return RESULTS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--attention",
        action="append",
        default=[],
        metavar="NAME",
        help="run the contract, and nothing else, on a choice of configs/attention, on backbone=NAME where that "
        "takes no attention, or on your own class or factory (MODULE:NAME); repeatable",
    )
    parser.addoption(
        "--setting",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of what --attention names, as in attention.k=32; repeatable",
    )
    parser.addoption("--record-golden", action="store_true", help="rewrite tests/golden from the code as it is now")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-golden") and "-m" not in config.invocation_params.args:
        config.option.markexpr = "not release and not gpu"  # what is recorded is a slow test
    if config.getoption("--attention"):
        sys.path.insert(0, str(config.invocation_params.dir))
        for marker in ("slow", "release", "gpu"):  # `subquad check` reads no pyproject.toml
            config.addinivalue_line("markers", f"{marker}: see pyproject.toml of the repository")
        if "-m" not in config.invocation_params.args:
            config.option.markexpr = "not release and not gpu"  # the slow tests of one attention take seconds


def own_attentions(config: pytest.Config) -> dict[str, Any]:
    """The objects named by --attention."""
    settings = config.getoption("--setting")
    try:
        return {
            name: load_factory(name, settings) if "=" in name else load_own_attention(name, settings)
            for name in config.getoption("--attention")
        }
    except UserError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --attention, only the tests of the contract remain."""
    if config.getoption("--attention"):
        here = Path(__file__).parent
        contracts = (
            here / "attention" / "test_contract.py", here / "attention" / "test_derivatives.py",
            here / "attention" / "test_export.py", here / "backbones" / "test_encoders.py",
        )  # fmt: skip
        kept = [item for item in items if item.path in contracts and "NOTSET" not in item.name]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """From here on, garbage is looked for."""
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What lives to the end is no garbage: collecting it again before each measurement would take a minute in all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # 3 % less time than by default


@pytest.fixture(autouse=True)
def _settings_of_torch() -> None:
    """Those that an earlier test may have changed. After one with more threads, a forked process would hang.

    Without a GPU, `torch.manual_seed` would format and keep a traceback for each test, to seed one that may come later.
    """
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    torch.set_num_threads(1)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without shape checks: torch.compile cannot trace through them."""
    shape_checks.update("jaxtyping_disable", True)
    yield
    shape_checks.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of data sets that the tests of runs share."""
    from runs import data_root  # not before the shape checks above are installed

    return data_root(tmp_path_factory.getbasetemp())


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Where the runs of one test go."""
    return tmp_path / "outputs"
