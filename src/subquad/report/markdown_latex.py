"""A table as Markdown or LaTeX, to paste into a text."""

import re
from collections.abc import Callable
from dataclasses import replace

from subquad.report.terminal import OF_PROJECT, source
from subquad.report.verdict_style import MARKS
from subquad.results.footnotes import metrics, notes
from subquad.results.model import FULL, PROJECT, CellResult, CellResults, Scope, TableResults
from subquad.results.side_lines import SideLines, side_lines
from subquad.results.verdict import Verdict

DASH = "—"


def markdown(results: TableResults, scope: Scope = FULL) -> str:
    """A table of GitHub's Markdown: each cell as ours, printed in brackets, and the verdict in words.

    Without a printed value, it only says if seeds are missing. A table of the project's results has only rows and
    columns with one.
    """

    def cell(value: CellResult | None, printed: str) -> str:
        if value is None:
            return f"{DASH} ({_md(printed)})" if printed else DASH
        mark = OF_PROJECT if value.scope.project and not scope.project else ""
        printed = f" ({_md(printed)})" if printed else ""
        said = f", {value.verdict.value}" if printed or value.verdict is Verdict.INCOMPLETE else ""
        return f"{_md(value.text)}{mark}{printed}{said}"

    beside = side_lines(results, lambda part: _shown(part, scope), scope.full)
    results = _filled(results, scope) if scope.project else results
    lines = [f"**{_md(results.table.title + scope.note)}**", ""]
    head, *body = _grid(results, scope, cell, beside, str)
    lines += [f"| {' | '.join(_md(name) for name in head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    lines += [f"| {_md(row[0])} | {' | '.join(row[1:])} |" for row in body]
    notes = [f"- {_md(note)}" for note in _notes(results)]
    return "\n".join([*lines, "", _md(_legend(results, scope, OF_PROJECT)), *(["", *notes] if notes else [])]) + "\n"


def latex(results: TableResults, scope: Scope = FULL) -> str:
    """A `table` of LaTeX with booktabs: each cell as ours, printed in brackets, the verdict as a letter."""

    def cell(value: CellResult | None, printed: str) -> str:
        shown = rf" {{\footnotesize({_tex(printed)})}}" if printed else ""
        if value is None:
            return f"--{shown}"
        mark = rf"{_PROJECT_LETTER}\," if value.scope.project else ""
        return rf"{_tex(value.text)}$^{{\mathrm{{{mark}{_LETTERS[value.verdict]}}}}}${shown}"

    beside = side_lines(results, lambda part: _shown(part, scope), scope.full)
    head, *body = _grid(results, scope, cell, beside, _tex)
    verdicts = {found.verdict for cell in results.shown if (found := _shown(cell, scope))}
    letters = "; ".join(f"{_LETTERS[v]}: {v.value}" for v in MARKS if v in verdicts)
    legend = _legend(results, scope, _PROJECT_LETTER)
    caption = f"{results.table.title + scope.note}. {legend}{f' {letters}.' if letters else ''}"
    notes = [rf"\par {_tex(note)}" for note in _notes(results)]
    return "\n".join([
        r"% \usepackage{booktabs}, \usepackage{textcomp}",
        r"\begin{table}", r"\centering", rf"\caption{{{_tex(caption)}}}",
        rf"\label{{tab:{re.sub('[^a-z0-9]+', '-', results.table.name.lower())}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule",
        f"{' & '.join(_tex(name) for name in head)} \\\\", r"\midrule",
        *(f"{' & '.join([_tex(row[0]), *row[1:]])} \\\\" for row in body),
        r"\bottomrule", r"\end{tabular}", *notes, r"\end{table}",
    ]) + "\n"  # fmt: skip


_LETTERS = {
    Verdict.REPRODUCED: "r", Verdict.AS_PRINTED: "s", Verdict.NOISE: "n", Verdict.BETTER: "b", Verdict.WORSE: "w",
    Verdict.MORE: "m", Verdict.LESS: "l", Verdict.INCOMPLETE: "i",
    Verdict.OTHER_SCALE: "o", Verdict.NOT_PRINTED: "new", Verdict.NEEDS_DATA: "d", Verdict.NOT_RUN: "--",
}  # fmt: skip


_PROJECT_LETTER = "p"


def _shown(cell: CellResults, scope: Scope) -> CellResult | None:
    """The result that fills a cell: ours, else the project's; None without a number."""
    found = map(cell.within, (scope, replace(scope, project=True)))
    return next((result for result in found if result is not None and result.text), None)


def _legend(results: TableResults, scope: Scope, mark: str) -> str:
    shown = [(cell, found) for cell in results.shown if (found := _shown(cell, scope))]
    trained = not shown or any(results.kind(cell) == "trained" for cell, _ in shown)
    seeds = (
        f"ours are means ± standard deviations over the seeds that have run, of {results.table.counts}; "
        if trained and results.table.counts not in ("", "1")
        else ""
    )
    project = not scope.project and any(result.scope.project for _, result in shown)
    marked = f" {mark}: {PROJECT.label} (docs/results)." if project else ""
    named = metrics(results.table)
    units = "; ".join(text if len(named) == 1 else f"{about}: {text}" for about, text in named)
    metric = f" Metric{'s' if len(named) > 1 else ''}: {units}." if named else ""
    return f"{source(results.table)}; {seeds}a dash is not measured.{marked}{metric}"


def _filled(results: TableResults, scope: Scope) -> TableResults:
    """The table with those rows and columns that have a value in a scope of the project."""
    filled = [cell.cell for cell in results.shown if _shown(cell, scope)]
    table = results.table.select([cell.row for cell in filled], [cell.column for cell in filled])
    return replace(results, table=table)


def _notes(results: TableResults) -> list[str]:
    return [f"{about}: {text}" for about, text in notes(results.table)]


def _grid(
    results: TableResults, scope: Scope, write: Callable[[CellResult | None, str], str], beside: SideLines,
    escape: Callable[[str], str],
) -> list[list[str]]:  # fmt: skip
    """Names of the columns first, then each row with its name; lines beside them that have a text come last."""
    columns, rows = ([part.name for part in parts] for parts in (results.table.columns, results.table.rows))
    side = {name: texts for name, texts in beside.side.items() if texts.keys() & {*rows}}
    lines = [["", *columns, *side]]
    for row in rows:
        cells = (results.cells.get((row, column)) for column in columns)
        written = ("" if p is None else write(_shown(p, scope), printed_text(p)) for p in cells)
        lines.append([row, *written, *(escape(texts.get(row, "")) for texts in side.values())])
    for name, texts in beside.foot.items():
        if texts.keys() & {*columns}:
            lines.append([name, *(escape(texts.get(column, "")) for column in columns), *[""] * len(side)])
    return lines


def printed_text(cell: CellResults) -> str:
    """The printed value of a cell, empty if none is printed."""
    return "" if cell.cell.printed is None else cell.cell.printed.text


def _md(text: str) -> str:
    """Text that Markdown and HTML leave as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", " ".join(text.split()))


_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "×": r"$\times$", "²": r"$^{2}$", "³": r"$^{3}$", "√": r"$\surd$",
    "·": r"$\cdot$", "−": r"$-$", "—": "---", "–": "--", "≥": r"$\geq$", "≤": r"$\leq$", "α": r"$\alpha$",
    "β": r"$\beta$", "γ": r"$\gamma$", "μ": r"$\mu$", "σ": r"$\sigma$", "ε": r"$\varepsilon$", "λ": r"$\lambda$",
    "…": r"\dots{}",
    '"': "''", "µ": r"$\mu$", "→": r"$\rightarrow$", "≈": r"$\approx$", "ö": r'\"o', "ü": r'\"u', "ä": r'\"a',
    "é": r"\'e", "ó": r"\'o",
}  # fmt: skip
"""Characters that LaTeX reads as commands, or that need further packages."""


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in " ".join(text.split()))
