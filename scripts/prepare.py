"""Fetches or makes the data of a task, verifies and caches them: python scripts/prepare.py task=lra/listops

`task=all` goes through every task and says what is missing. Other words are settings, as in data.seed=1.
"""

import sys
from typing import Any, cast

from omegaconf import MissingMandatoryValue, OmegaConf
from rich.console import Console

from subquad.errors import UserError
from subquad.run.doors import answer_help, compose_run, options, prepare_process, sentence

answer_help(__doc__)
prepare_process()


def main() -> None:
    """Prepares the asked tasks; the exit status is 1 when one of them could not be prepared."""
    words = sys.argv[1:]
    if not any(word.startswith("task=") for word in words):
        raise UserError("Name a task, as in: python scripts/prepare.py task=lra/listops (or task=all).")
    if "task=all" not in words:
        _prepare(words)
        return
    others = [word for word in words if word != "task=all"]
    failed = 0
    for task in (name for name in options("task") if not name.endswith("/custom")):
        try:
            _prepare([f"task={task}", *others])
        except UserError as error:
            failed += 1
            Console(stderr=True).print(f"{task}: {error}", soft_wrap=True, highlight=False)
    if failed:
        raise UserError(f"{failed} tasks could not be prepared; the lines above say what each of them needs.")


def _prepare(overrides: list[str]) -> None:
    config = compose_run(overrides)
    # Heavy: after composition, so that a misspelt word is answered at once.
    from hydra.utils import instantiate

    from subquad.run.settings import check_settings

    try:
        check_settings("data", cast(dict[str, Any], OmegaConf.to_container(config.data, resolve=True)))
        data = instantiate(config.data, _convert_="all")
        data.fetch()
        data.prepare_data()
        lines = _description(config.task.name, data)
    except MissingMandatoryValue as error:
        raise UserError(f"A setting is missing ({str(error).splitlines()[0]}); give it on the command line.") from None
    except Exception as error:
        raise sentence(error) or error from None
    Console().print("\n".join(lines), soft_wrap=True, highlight=False)


def _description(task: str, data: Any) -> list[str]:
    rows = ", ".join(f"{name} {len(split):,}" for name, split in data.splits.items())
    longest = max(int(split.lengths.max(initial=0)) for split in data.splits.values())
    unit = "" if data.spec.classes is None else " accuracy"
    lines = [f"{task}: {rows}; longest {longest:,}; fingerprint {data.fingerprint}"]
    return lines + [f"  {name}: {score:.4g}{unit} on test" for name, score in data.baselines().items()]


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("Interrupted; what was not finished is made again by the same command.")
