"""The page docs/differences.md: which printed differences exceed chance, and which claims of the papers they carry."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from subquad.results.differences import Difference, Smallest, claims_of, smallest
from subquad.results.table import Claim, Table

_HEAD = """# Differences

Written by `make docs` from the printed numbers in `configs/table/` and the sizes of the test splits in
[tasks.md](tasks.md); a test compares the two. It says which differences between printed accuracies exceed chance. It
judges printed numbers, not attentions: a difference that is open here may be real.

## The rule

A printed accuracy p stands for all test sets and seeds. Its variance is the sum of two parts:

- **test rows**: q (1 - q) / (n + 2) with q = (n p + 1) / (n + 2) for n test rows: the binomial variance with one right
  and one wrong row added (Agresti and Caffo 2000), so that 100 % is not certain. All seeds share the test rows, so more
  seeds do not make it smaller;
- **seeds**: s² / k for the printed standard deviation s over k seeds. Without a printed spread it is unknown and left
  out; half widths are then lower bounds, marked ≥. The number of seeds is that of the table; where the paper prints
  none, the file of the table says so.

The variance of an average over tasks is the sum of the variances of its parts, divided by the square of their number;
the spread printed beside the average is not used. Two values differ beyond chance if their difference exceeds
t √(sum of both variances), with the two-sided 95 % quantile t of Student's distribution and the degrees of freedom of
Welch and Satterthwaite, where test rows have infinitely many. The samples count as unpaired: with the predictions of
both models on the same rows, smaller differences could be told. Of 20 differences between equal models, one exceeds
this by chance; nothing is corrected for many comparisons.

A claim is that the paper calls one method better than another; the files of the tables list them (`claims`). Each
printed difference of a claim is **carried** (ours is above by more than chance; bold below), open, or opposite (below
by more than chance). One with ≥ is carried by the test rows, but the spread over seeds of one side is not printed and
could still exceed it; it is counted apart. Tables show a difference with the half width of its interval in brackets.
The smallest difference of a line is the half width for two values like the mean of those printed there, with the mean
of their variances over seeds. Metrics that are no share of right test rows (errors, perplexity, costs, VQA accuracy by
type of answer) have no such rule and are left out, as are averages whose parts are not printed.
"""


def differences_page(tables: Sequence[Table]) -> str:
    """The page for these tables."""
    claims = claims_of(tables)
    sections = [text for table in tables if (text := _section(table, [c for c in claims if c[0] is table]))]
    return "\n\n".join([_HEAD.rstrip(), _summary(claims), *sections]) + "\n"


def _summary(claims: Sequence[tuple[Table, Claim, list[Difference]]]) -> str:
    """How many printed differences of each claim are carried, with the sums of all papers."""
    lines = [
        "| table | claim: better | than | printed differences | ours above | carried | of these ≥ | open | opposite |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for table, claim, found in claims:
        than = ", ".join(claim.over) if len(claim.over) < 4 else f"the {len(claim.over)} others"
        whole = [tuple(line.name for line in every) for every in (table.rows, table.columns)]
        at = "" if claim.at in whole else f", on {', '.join(claim.at)}"
        lines.append(f"| [{table.name}](#{_anchor(table)}) | {', '.join(claim.ours)} | {than}{at} | {_counts(found)} |")
    papers = dict.fromkeys(table.name.partition("/")[0] for table, _, _ in claims)
    for paper in papers:
        own = [each for table, _, found in claims if table.name.partition("/")[0] == paper for each in found]
        lines.append(f"| all of {paper} | | | {_counts(own)} |")
    every = [each for _, _, found in claims for each in found]
    lines.append(f"| **all** | | | {_counts(every)} |")
    return "\n".join(["## Claims", "", *lines])


def _counts(found: Sequence[Difference]) -> str:
    verdicts = Counter(each.verdict for each in found)
    above = sum(each.difference > 0 for each in found)
    bounds = sum(each.verdict == "carried" and not each.spread_known for each in found)
    counts = (len(found), above, verdicts["carried"], bounds, verdicts["open"], verdicts["opposite"])
    return " | ".join(map(str, counts))


def _anchor(table: Table) -> str:
    return table.name.replace("/", "")


def _section(table: Table, claims: Iterable[tuple[Table, Claim, list[Difference]]]) -> str:
    """The lines of a table with their test rows and smallest differences, and the differences of its claims."""
    _, lines = smallest(table)
    if not lines:
        return ""
    differences = [each for _, _, found in claims for each in found]
    pairs = list(dict.fromkeys((each.ours, each.over) for each in differences))
    by = {(each.ours, each.over, each.line): each for each in differences}
    across = len(pairs) > len(lines)
    head = ["", *(f"{ours} over {over}" for ours, over in pairs)]
    body = [[line.line, *(_text(by.get((*pair, line.line))) for pair in pairs)] for line in lines]
    facts = [["test rows", *map(_rows, lines)], ["one row", *map(_row, lines)]]
    facts.append(["smallest difference", *(line.text for line in lines)])
    if across:
        columns = [line.line for line in lines]
        rows = [["", *columns], *facts, *([head[i], *(line[i] for line in body)] for i in range(1, len(head)))]
    else:
        rows = [["", *(fact[0] for fact in facts), *head[1:]]]
        rows += [[line[0], *(fact[i] for fact in facts), *line[1:]] for i, line in enumerate(body, start=1)]
    return "\n".join([f"## {table.name}", "", f"{table.title}. {table.source}.", "", *_grid(rows)])


def _grid(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if number == 0:
            yield f"|---|{'---:|' * (len(row) - 1)}"


def _rows(line: Smallest) -> str:
    return f"{line.rows[0]:,}" if len(line.rows) == 1 else f"{len(line.rows)} tasks"


def _row(line: Smallest) -> str:
    """How many points one test row is."""
    return f"{100 / line.rows[0]:.2g}" if len(line.rows) == 1 else ""


def _text(found: Difference | None) -> str:
    if found is None:
        return ""
    text = f"{found.difference:+.2f} ({'' if found.spread_known else '≥ '}{found.half_width:.2f})"
    return {"carried": f"**{text}**", "open": text, "opposite": f"{text}, opposite"}[found.verdict]
