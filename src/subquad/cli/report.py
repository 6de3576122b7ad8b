"""Writes the page of all results: every table beside the printed numbers, every run, figures and benchmarks.

python scripts/report.py                                       # outputs/report/index.html
python scripts/report.py output=/tmp/pages
python scripts/report.py table=dba/2 format=markdown           # one table as text; format=latex
python scripts/report.py table=dba/2 format=latex scale=laptop
python scripts/report.py watch=true                            # outputs/report/live.html: what is trained now; watch=30

The pages need no network and no server. A dash was not run; files that cannot be read are listed.
"""

import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from subquad.cli.command import script_settings
from subquad.cli.table_arguments import outputs_of
from subquad.utils.errors import UserError

DEFAULTS = {
    "table": None, "format": "html", "output": None, "scale": "paper", "protocol": "paper", "data": None,
    "watch": False,
}  # fmt: skip
FORMATS = ("html", "markdown", "latex")


def main() -> None:
    """Prints where the page is, or the text of a table."""
    paths = [override for override in sys.argv[1:] if override.startswith("paths.")]
    config = script_settings(DEFAULTS, [override for override in sys.argv[1:] if override not in paths])
    if config.format not in FORMATS:
        raise UserError(f"There is no format {config.format}; choose {', '.join(FORMATS)}.")
    if config.watch:
        _watch(config, paths)
    elif config.format == "html":
        _write_pages(config, paths)
    else:
        _print_table(config, paths)


def _write_pages(config: Any, paths: list[str]) -> None:
    from subquad.report.html.site import write_site
    from subquad.results.cells import load_table
    from subquad.results.collect import all_tables, gather

    if config.table is not None:
        load_table(str(config.table))
    keys = ("table", "scale", "protocol", "data")
    if given := [f"{key}={config[key]}" for key in keys if config[key] != DEFAULTS[key]]:
        raise UserError(
            f"The page shows all tables and scales; leave {' '.join(given)} out, or say format=markdown or latex."
        )
    names, console = all_tables(), Console(stderr=True)
    with Progress(console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("Tables", total=len(names))

        def reached(name: str) -> None:
            progress.update(task, description=f"Table {name}", completed=names.index(name), refresh=True)

        content = gather(names, paths, reached)
        progress.update(task, description="Pages", completed=len(names), refresh=True)
        folder = Path(config.output or outputs_of(paths) / "report")
        index = write_site(folder, content)
    for problem in content.broken:
        console.print(f"{problem.path}: {problem.message}", soft_wrap=True, markup=False, highlight=False)
    print(index)


def _watch(config: Any, paths: list[str]) -> None:
    """Renews the page of what is trained until it is interrupted, every 5 seconds or as `watch` says."""
    from subquad.report.html.live_page import write_live_page

    seconds = 5.0 if config.watch is True else config.watch
    outputs = outputs_of(paths)
    page = Path(config.output or outputs / "report") / "live.html"
    with Console(stderr=True).status("") as status:
        while True:
            line = write_live_page(page, outputs, seconds)
            status.update(f"{page}: {line}; Ctrl-C ends it.")
            time.sleep(seconds)


def _print_table(config: Any, paths: list[str]) -> None:
    from subquad.cli.table_arguments import chosen_scope
    from subquad.report.markdown_latex import latex, markdown
    from subquad.results.collect import gather_table

    scope = chosen_scope(config)
    results = gather_table(config.table, paths)
    write = markdown if config.format == "markdown" else latex
    text = write(results, scope)
    if config.output:
        Path(config.output).parent.mkdir(parents=True, exist_ok=True)
        Path(config.output).write_text(text, encoding="utf-8")
        print(config.output)
    else:
        sys.stdout.write(text)
