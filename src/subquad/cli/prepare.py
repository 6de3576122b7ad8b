"""Downloads or generates the data of a task, verifies and caches them; downloads the weights that runs start from.

python scripts/prepare.py task=lra/listops
python scripts/prepare.py task=[lra/listops,lra/text]
python scripts/prepare.py task=all            # every task; lists what is missing

All other overrides are those of train.py, as in data.seed=1 or backbone.pretrained=hub. Training needs no network.
"""

import sys
from typing import Any, cast

from omegaconf import MissingMandatoryValue, OmegaConf
from rich.console import Console

from subquad.config.choices import options
from subquad.config.compose import compose_run
from subquad.utils.display import sizes
from subquad.utils.errors import UserError, explain


def main() -> None:
    """Prepares the chosen task or all tasks; raises UserError if any cannot be prepared."""
    chosen = [argument.removeprefix("task=").strip("[]") for argument in sys.argv[1:] if argument.startswith("task=")]
    others = [argument for argument in sys.argv[1:] if not argument.startswith("task=")]
    if not chosen or not chosen[-1]:
        raise UserError("Name a task, as in: python scripts/prepare.py task=lra/listops (or task=all).")
    every = (name for name in options("task") if not name.endswith("/custom"))
    tasks = list(every) if chosen[-1] == "all" else [name.strip() for name in chosen[-1].split(",")]
    if len(tasks) == 1:
        _prepare([f"task={tasks[0]}", *others])
        return
    failed = 0
    for task in tasks:
        try:
            _prepare([f"task={task}", *others])
        except UserError as error:
            failed += 1
            Console(stderr=True).print(f"{task}: {error}", soft_wrap=True, highlight=False, markup=False)
    if failed:
        raise UserError(f"{failed} tasks could not be prepared; see the reasons above.")


def _prepare(overrides: list[str]) -> None:
    config = compose_run(overrides)
    # Slow imports come after composition, so that a misspelt override is reported at once.
    from hydra.utils import instantiate

    from subquad.config.settings import check_settings

    try:
        if config.backbone.get("pretrained"):
            from subquad.backbones import pretrained

            pretrained.fetch(config.backbone.pretrained, config.backbone.get("model"))
        check_settings("data", cast(dict[str, Any], OmegaConf.to_container(config.data, resolve=True)))
        data = instantiate(config.data, _convert_="all")
        data.fetch()
        data.prepare_data()
        lines = _description(config.task.name, data)
    except MissingMandatoryValue as error:
        raise UserError(f"A setting is missing ({str(error).splitlines()[0]}); give it on the command line.") from None
    except Exception as error:
        raise explain(error) or error from None
    Console().print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)


def _description(task: str, data: Any) -> list[str]:
    rows = sizes({name: len(split) for name, split in data.splits.items()})
    longest = max(int(split.lengths.max(initial=0)) for split in data.splits.values())
    unit = "" if data.spec.classes is None else " accuracy"
    lines = [f"{task}: {rows}; longest {longest:,}; fingerprint {data.fingerprint}"]
    return lines + [f"  {name}: {score:.4g}{unit} on test" for name, score in data.baselines().items()]
