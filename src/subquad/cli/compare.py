"""Compares attentions on your own data: one small model, equal training, a table with intervals and a page.

python scripts/compare.py data=/path/to/images
python scripts/compare.py data=/path/to/train.csv attentions=[softmax,dba,linformer] hours=0.25
python scripts/compare.py task=uea/basic_motions seeds=5 rates=[1e-3,3e-3]

data= takes a folder of images with a folder for each class, a table of labelled texts (csv, tsv, json, jsonl, parquet),
a folder with tokens.npy, or <name>_TRAIN.ts beside <name>_TEST.ts. task= takes a task of train.py instead.

    attentions=[...]  choices of attention=, classes of your own (my_module:Mine), `none` for no attention, with
                      settings behind a name in quotation marks ("linformer attention.k=16"); softmax, none and five
                      others if left out
    rates=[...]       learning rates; a third of the recipe's, the recipe's, and three times it if left out
    seeds=3           runs of each row that are tested
    hours=1           time for all of it

Other overrides of train.py go to every run: data.label=..., recipe=, scale=, trainer=, hydra/launcher=, sweep.workers=.
Short runs of each row measure its time; from that follows one number of epochs for all runs, so that they fit into
`hours`. Each row gets the rate with the best validation score of one run, then is trained with other seeds and tested.
The same command resumes what was interrupted, and shows what has finished.
"""

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from subquad.cli.command import script_settings
from subquad.config.choices import hint, options
from subquad.config.compose import load_own_attention
from subquad.config.overrides import as_override
from subquad.planning.comparison import NONE, Comparison
from subquad.utils.errors import UserError

OWN: dict[str, Any] = {
    "data": None, "rates": None, "seeds": 3, "hours": 1.0,
    "attentions": ["softmax", NONE, "dba", "linformer", "linear", "nystromformer", "local"],
}  # fmt: skip
_CHOSEN_HERE = {
    "attention": "attentions=[softmax,dba]", "seed": "seeds=3", "optimizer.lr": "rates=[1e-3,3e-3]",
    "backbone.attention": "attentions=[softmax,none]", "trainer.max_epochs": "hours=1", "trainer.max_steps": "hours=1",
}  # fmt: skip


def main() -> int:
    """Trains and tests what is missing, prints the table and where the page is; 1 if a run failed."""
    own = [o for o in sys.argv[1:] if o.partition("=")[0] in OWN and o.partition("=")[::2] != ("data", "synthetic")]
    passed = [override for override in sys.argv[1:] if override not in own]
    config = script_settings(OWN, own)
    _check(config, passed)
    console = Console(highlight=False)
    of_sweep = [override for override in passed if override.startswith(("hydra", "sweep."))]
    comparison = Comparison(
        [*_task(config.data, passed, console), *(o for o in passed if o not in of_sweep)],
        list(map(str, config.attentions)), config.rates and list(map(float, config.rates)), config.seeds,
        config.hours, of_sweep, named=any(override.startswith("attentions=") for override in own),
    )  # fmt: skip
    if not comparison.train(console):
        return 1
    from subquad.report.comparison import show, write  # matplotlib

    result = comparison.result()
    show(result, console)
    console.print(str(write(result)), soft_wrap=True, markup=False)
    return 0


def _check(config: Any, passed: Sequence[str]) -> None:
    """Raises UserError for settings that no comparison can have."""
    _check_overrides(passed)
    names = OmegaConf.to_container(config.attentions) if OmegaConf.is_list(config.attentions) else None
    if not names or len(dict.fromkeys(map(str, names))) < 2:
        raise UserError("attentions= needs two or more different rows, as in attentions=[softmax,dba,none].")
    for name, *settings in (str(entry).split() for entry in names):
        if ":" in name:
            load_own_attention(name, settings)
        elif name not in (known := [*options("attention"), NONE]):
            raise UserError(f'There is no attention "{name}"; {hint(name, known)}')
        if other := [text for text in settings if not text.lstrip("+~").startswith(("attention.", "backbone."))]:
            raise UserError(
                f"{other[0]} behind {name} would train this row otherwise than the others; give a row settings of "
                "attention. and backbone. only."
            )
    if config.seeds < 2:
        raise UserError("seeds=1 shows no variation between runs; say seeds=2 or more.")
    if config.rates is not None:
        rates = list(config.rates) if OmegaConf.is_list(config.rates) else []
        if not rates or any(isinstance(r, bool) or not isinstance(r, int | float) or r <= 0 for r in rates):
            raise UserError(f"rates={config.rates} has to list learning rates above 0, as in rates=[3e-4,1e-3].")


def _check_overrides(passed: Sequence[str]) -> None:
    """Raises UserError for overrides of train.py that this command chooses itself."""
    for override in passed:
        key = override.partition("=")[0].lstrip("+~")
        if other := _CHOSEN_HERE.get(key) or (key.startswith("attention.") and '"dba attention.d_p=32" in attentions='):
            raise UserError(f"{override} is chosen by this command; say {other}.")
        if key not in OWN and (near := difflib.get_close_matches(key, list(OWN), n=1, cutoff=0.75)) and "." not in key:
            raise UserError(f'There is no setting "{key}"; did you mean {near[0]}?')
    if "protocol=paper" in passed:
        raise UserError("protocol=paper may select on test rows, which a comparison must not; leave it out.")


def _task(data: Any, passed: Sequence[str], console: Console) -> list[str]:
    """The overrides that choose the task: those for the files of `data`, or none where `task=` stands in `passed`."""
    from subquad.data.own_data import TAKES, task_of

    named = any(override.startswith("task=") for override in passed)
    if (data is None) != named:
        raise UserError(f"Compare on which data? Say either data=<path> or task=<task>; of data=, {TAKES}.")
    if data is None:
        return []
    settings, seen = task_of(Path(str(data)).expanduser().absolute())
    chosen = [f"{key}={as_override(value)}" for key, value in settings.items()]
    console.print(f"data={data}: {seen}, so {' '.join(chosen)}", soft_wrap=True, markup=False)
    return chosen
