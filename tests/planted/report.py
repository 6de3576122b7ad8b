"""Planted bugs of the page of all results."""

from planted import Bug

GATHER, CONTENT, LEDGER = "run/gather.py", "report/content.py", "report/ledger.py"
COMMANDS, CHART, FORMATS = "report/commands.py", "report/chart.py", "report/formats.py"
PARTS, SITE, PAGE = "report/parts.py", "report/site.py", "report/page.py"
TEMPLATES = "report/templates"


def tests(name: str) -> str:
    """The file that must notice."""
    return f"tests/report/test_{name}.py"


BUGS = [
    Bug(
        "means need no data", GATHER, "return with_means(table.cells, own)", "return own", tests("gather"),
    ),
    Bug("other scales get verdicts", GATHER, "verdict(table, cell, values, self.scope.full)",
        "verdict(table, cell, values, True)", tests("gather")),
    Bug("one broken record ends the page", "run/cells.py", "            except UserError as error:\n",
        "            except KeyError as error:\n", tests("gather")),
    Bug("everything is composed", GATHER, "cell.mean or _possible(cell, known)", "True", tests("gather")),
    Bug("compositions are forgotten", GATHER, "    compositions.save()\n", "", tests("gather")),
    Bug("floors in the wrong unit", GATHER, "score * cell.metric.times for", "score for", tests("gather")),
    Bug("the first seed of a table is left out", "run/cells.py", "return range(cell.seeds) if seeds is None",
        "return range(1, cell.seeds) if seeds is None", tests("gather")),
    Bug("runs of tables are one's own", GATHER, "if folder not in claimed", "if folder", tests("gather")),
    Bug("made-up data pass for real", CONTENT, 'return self.scale == "paper" and not self.standin',
        "return True", tests("gather")),
    Bug("another scale is not said", CONTENT, "if not first.text and any(", "if first.text and any(", tests("gather")),
    Bug("a garbled curve ends the page", LEDGER, "except (OSError, ValueError, KeyError, TypeError) as error",
        "except OSError as error", tests("gather")),
    Bug("a failed run is unfinished", LEDGER, "            ended.add(path.parent)\n            message",
        "            message", tests("gather")),
    Bug("spaces take a command apart", COMMANDS, "shlex.quote(str(word))", "str(word)", tests("commands")),
    Bug("odd names stand bare", COMMANDS, "set(name) <= _PLAIN and", "name and", tests("commands")),
    Bug("a hidden part asks for itself", COMMANDS, "elif cell.column not in shown:", "elif not shown:",
        tests("commands")),
    Bug("a mean without its parts", COMMANDS, "    if cell.mean:\n", "    if not cell:\n", tests("commands")),
    Bug("curves lose their end", CHART, "return [*points[:-1:stride], *points[-1:]]", "return points[::stride]",
        tests("chart")),
    Bug("an axis upside down", CHART, "Axis(min(steps), max(steps), 52, 404), axis(values, 186, 8)",
        "Axis(min(steps), max(steps), 404, 52), axis(values, 186, 8)", tests("chart")),
    Bug("counted cells are compared", CHART, 'part.cell.metric.better != "equal"', "part", tests("chart")),
    Bug("printed spreads are not drawn", CHART, "else printed.spread or 0.0", "else 0.0", tests("chart")),
    Bug("Markdown takes a bar for a cell", FORMATS, "<>#|~$", "<>#~$", tests("formats")),
    Bug("LaTeX takes a percent sign for a comment", FORMATS, r'"%": r"\%", ', "", tests("formats")),
    Bug("scopes are mixed in text", FORMATS, "if value.scope == scope), None)", "if value.text), None)",
        tests("formats")),
    Bug("the interval has one side", PARTS, "for sign in (-1, 1))", "for sign in (0, 1))", tests("site")),
    Bug("floors stand at any column", PARTS, "all(len(s) == 1 for lines", "any(len(s) == 1 for lines", tests("floors")),
    Bug("names become tags", PAGE, "autoescape=select_autoescape(default=True)", "autoescape=False", tests("site")),
    Bug("links to odd folders break", SITE, 're.sub(r"[^\\w./=-]", "_", run.key, flags=re.ASCII)', "run.key",
        tests("site")),
    Bug("pages of others are removed", SITE, 'and ".." not in Path(name).parts', "", tests("site")),
    Bug("old pages stay", SITE, "(self.folder / name).unlink(missing_ok=True)", "pass", tests("site")),
    Bug("a cell leads nowhere", f"{TEMPLATES}/table.html.j2", '<article id="{{ cell.anchor }}"', "<article",
        tests("site")),
    Bug("a verdict by colour only", f"{TEMPLATES}/macros.html.j2", "{{ mark.sign }}</i> {{ word }}</span>",
        "{{ mark.sign }}</i></span>", tests("site")),
    Bug("faint colours", f"{TEMPLATES}/report.css.j2", "--noise: light-dark(#0a6470", "--noise: light-dark(#4aa4b0",
        tests("site")),
    Bug("columns without scope", f"{TEMPLATES}/table.html.j2", '<th scope="row">{{ row.name }}</th>',
        "<th>{{ row.name }}</th>", tests("site")),
]  # fmt: skip
