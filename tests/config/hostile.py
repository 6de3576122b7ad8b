"""Hostile overrides, and what a command makes of them up to training."""

import sys
from pathlib import Path

from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

BASES = (
    ("task=digits", "scale=smoke", "attention=dba"),
    ("task=uea/basic_motions", "scale=smoke", "attention=linformer"),
    ("task=lra/listops", "scale=smoke", "attention=performer"),
    ("task=digits", "scale=smoke", "backbone=s4d"),
)
_VALUES = (
    "-1", "0", "1", "2", "-0.5", "0.5", "1.5", "1e308", "-1e308", "100000000000000000000", "nan", "inf", "-inf", "true",
    "false", "null", "", "''", "'1'", "x", "ü", "'\U0001f600'", "[]", "[1,2]", "[a,[b]]", "{}", "{a:1}", "{_target_:x}",
    "${seed}", "${nothing.here}", "${", "'${oc.env:HOME}'", "${backbone}", "dba", "uea/basic_motions", "../../etc",
    "'a b'", "a=b", "1,2", "glob(*)", "range(1,3)", "choice(1,2)", "%s", "\\", "9" * 30, "x" * 300,
)  # fmt: skip
_PREFIXES = ("", "", "", "", "", "+", "++", "~")


def keys(base: tuple[str, ...]) -> list[str]:
    """Every key of the configuration, its groups, and some that do not exist."""
    from subquad.config.choices import groups
    from subquad.config.compose import compose_run

    found: list[str] = []

    def walk(node: object, path: str) -> None:
        if isinstance(node, dict):
            for name, value in node.items():
                found.append(place := f"{path}.{name}".lstrip("."))
                walk(value, place)

    walk(OmegaConf.to_container(compose_run(base), resolve=False), "")
    kept = [key for key in found if not key.startswith(("about", "paths", "recipe.sizes"))]
    return [
        *kept,
        *groups(),
        "nothing",
        "nothing.here",
        "backbone.layer",
        "attention@exact",
        "hydra.verbose",
        "sweep.x",
    ]


def overrides(base: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    """One to three overrides, or the same one twice."""
    one = st.builds("{}{}={}".format, st.sampled_from(_PREFIXES), st.sampled_from(keys(base)), st.sampled_from(_VALUES))
    return st.lists(one, min_size=1, max_size=3) | one.map(lambda word: [word, word])


def verdict(base: tuple[str, ...], drawn: list[str], root: Path, build: bool) -> str:
    """`built` (or `composed`) or `refused` in a sentence; any other exception is raised."""
    from hydra.errors import HydraException

    from subquad.config.compose import compose_run
    from subquad.utils.errors import explain

    fixed = [f"paths.root={root}", f"paths.data={root}/data", f"paths.outputs={root}/outputs"]
    try:
        config = compose_run([*base, *drawn, *fixed])
        _ = config.paths.run  # resolves the fingerprint, as Hydra does for the output folder
        if build:
            build_run(config)
    except SystemExit as error:
        if isinstance(error.code, str):
            return "refused"
        raise
    except Exception as error:
        if str(error).strip() and (explain(error) or isinstance(error, HydraException | OmegaConfBaseException)):
            return "refused"
        raise
    return "built" if build else "composed"


def table_arguments() -> st.SearchStrategy[list[str]]:
    """Arguments of the commands about tables: reproduce, plan, report."""
    names = ("rows", "columns", "seeds", "run", "measure", "again", "compare", "gpu_memory", "scale", "data", "none")
    chosen = st.sampled_from(
        ("table=dba/2", "table=[dba/2,dba/9]", "table=", "table=null", "table=dba/99", "table=[1]")
    )
    one = st.builds("{}={}".format, st.sampled_from(names), st.sampled_from(_VALUES))
    return st.builds(lambda table, more: [table, *more], chosen, st.lists(one, max_size=3))


def table_verdict(drawn: list[str]) -> str:
    """As `verdict`, for the arguments of a command about tables; the runs of the first column are composed."""
    from unittest.mock import patch

    from subquad.cli import table_arguments as arguments
    from subquad.results.cells import RunIndex
    from subquad.utils.errors import UserError

    own = {"run": True, "measure": None, "again": False, "compare": [], "gpu_memory": None}
    try:
        with patch.object(sys, "argv", ["reproduce.py", *drawn]):
            config, passed = arguments.split_arguments(own)
            tables = arguments.chosen_tables(config)
            seeds = arguments.chosen_seeds(config, tables)
            runs = RunIndex(passed)
            for table in tables:
                cell = next((cell for cell in table if cell.trained), None)
                if cell is not None:
                    runs.spec(cell.overrides, (seeds[table.name] or [0])[0])
    except UserError as error:
        return "refused" if str(error).strip() else "without a sentence"
    except SystemExit as error:
        if isinstance(error.code, str):
            return "refused"
        raise
    return "composed"


def build_run(config: object) -> None:
    """Everything that `train` does before its first step."""
    from unittest.mock import patch

    from subquad.training import run

    class Built(BaseException):
        pass

    with patch.object(run, "_train_and_test", side_effect=Built):
        try:
            run.train(config)  # type: ignore[arg-type]
        except Built:
            return
    raise AssertionError("the run was taken for a finished one")
