"""Writes the learning rates of table arena: those with the best validation accuracy in arena_rates.

python scripts/reproduce.py table=arena_rates && python scripts/arena_rates.py

A row and task get a rate once all rates of the grid are measured, here or by the project; of equal ones the lowest.
Until then they have that of recipe=arena.
"""

import sys

from subquad.cli.command import answer_help, prepare_process
from subquad.config.choices import file_of

answer_help(__doc__)
prepare_process()

from subquad.results.added_rows import best_rates  # noqa: E402  after prepare_process
from subquad.results.collect import gather_table  # noqa: E402

BEGIN = "# Written by scripts/arena_rates.py.\n"
"""The line of the table after which the rates stand, up to the end of the file."""


def written(table: str, rates: dict[tuple[str, str], str]) -> str:
    """The text of the table with these rates in place of earlier ones. All columns of recall are those of one run."""
    lines = [
        f'  "{row} / {"recall *" if task == "recall" else task}": {{overrides: [optimizer.lr={rate}]}}\n'
        for (row, task), rate in rates.items()
    ]
    return table.partition(BEGIN)[0] + BEGIN + "".join(lines)


if __name__ == "__main__":
    path = file_of("table", "arena")
    assert path is not None
    chosen = best_rates(gather_table("arena_rates"))
    if chosen:
        path.write_text(written(path.read_text(), chosen))
        sys.stdout.write(f"{path} has the rates of {len(chosen)} rows and tasks.\n")
    else:
        sys.stdout.write(f"Nothing is measured; {path} is as it was.\n")
