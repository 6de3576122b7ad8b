"""A table of a paper as data: which settings are behind each cell, and what is printed there.

configs/table/<paper>/<number>.yaml holds

    title, source     what the table shows, and where it is printed
    metric            {name, label, scale_by, unit, better} of cells without a metric of their own
    seeds             how many trained runs a cell is the mean of; 0 for counted and measured cells. A column, a row or
                      a cell may have its own. The seeds of its runs begin with `first_seed` of the table: 0
    overrides         overrides of train.py that all cells share: [recipe=luna]
    columns, rows     name: [overrides], or name: {overrides, init_from, eval_data, metric, measure, mean, seeds,
                      hidden, from_prior_work, note, unavailable}
    printed           row: the cells in the order of the columns, separated by spaces, in quotes if there is one;
                      "-" for an empty cell, which is not run; "?" for a cell without a known number, which is run
    cells             "row / column": {overrides, init_from, eval_data, measure, seeds, from_prior_work, note,
                      unavailable}, for single ones; names may be patterns of fnmatch, as in "* / [234]k"
    charts            pairs of columns [across, up] that the report draws against each other, one point a row
    reference         the row that the report compares every other row with, seed by seed
    needs, costs      trained and measured columns, with words for them, from which the report says which row to take
    counted           false: its cells are not among those of the five papers, in counts of what is reproduced
    claims            which rows or columns the paper calls better than which others: [{ours: [DBA], over: [Luna]}];
                      without `over`, than all others; with `at: [Text]`, there only (docs/differences.md)

A line's own metric adds to that of the table, except that measured cells take nothing from a table's metric that names
one of a record (`name: test/accuracy`), whose unit does not apply to a measurement.

A cell is trained with the overrides of the table, its column, its row and its own, in this order. If one of them has
`measure`, it is measured instead: the merged node names a function of the package; with a `seed`, it measures the
trained run with that seed. `mean: true` makes a row or column the mean of the others (`mean: [a, b]` of those named).
`unavailable` says why a cell cannot be run with this package. `init_from` are the overrides of another run, whose best
weights a run starts from. `eval_data` are settings of the data on which the trained weights are evaluated, if they
differ from those of training: {multiply: 4}. A `hidden` column is not printed: a mean needs its cells.
`from_prior_work` marks numbers that the paper took from elsewhere.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from subquad.config.choices import hint
from subquad.results.published_value import Direction, Printed, split_line
from subquad.utils.errors import UserError, first_line

Place = tuple[str, str]
"""Row and column of a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The quantity of a cell: `name` in a record (or the value of `measure`), multiplied by `scale_by`."""

    name: str = "value"
    label: str = ""
    scale_by: float = 1.0
    unit: str = ""
    better: Direction = "higher"

    def __post_init__(self) -> None:
        if self.better not in get_args(Direction):
            raise UserError(f"better is {self.better}; choose {', '.join(get_args(Direction))}.")
        if type(self.scale_by) not in (int, float):
            raise UserError(f"scale_by is {self.scale_by}; it takes a number.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row or a column. `mean` names the lines that it averages."""

    name: str
    overrides: tuple[str, ...] = ()
    init_from: tuple[str, ...] = ()
    eval_data: Mapping[str, Any] = field(default_factory=dict)
    metric: Mapping[str, Any] = field(default_factory=dict)
    measure: Mapping[str, Any] = field(default_factory=dict)
    mean: tuple[str, ...] = ()
    seeds: int | None = None
    hidden: bool = False
    from_prior_work: bool = False
    note: str = ""
    unavailable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell. With `mean` it is the average of those (row, column); with `measure` a function's value; else trained.

    init_from: overrides of the run whose best weights the cell's run starts from; empty if it starts afresh.
    seeds: how many runs the paper takes the mean of; those with seeds from `first_seed` are trained.
    eval_data: settings of the data that the run is evaluated on, if they differ from those of training.
    from_prior_work: the paper took the number from elsewhere. unavailable: why this package cannot fill it.
    """

    row: str
    column: str
    overrides: tuple[str, ...]
    init_from: tuple[str, ...] = ()
    eval_data: Mapping[str, Any] = field(default_factory=dict)
    metric: Metric
    measure: Mapping[str, Any]
    mean: tuple[Place, ...]
    seeds: int
    first_seed: int
    printed: Printed | None
    from_prior_work: bool
    notes: tuple[str, ...]
    unavailable: str

    @property
    def place(self) -> Place:
        """Its row and column."""
        return self.row, self.column

    @property
    def trained(self) -> bool:
        """Whether the records of runs of train.py fill it."""
        return not (self.mean or self.measure or self.unavailable)

    @property
    def digits(self) -> int:
        """How many digits behind the point its value is shown with: those that are printed."""
        if self.printed is not None and self.printed.value is not None:
            return self.printed.digits
        return 0 if self.metric.better == "equal" else 2

    @property
    def of_run(self) -> bool:
        """Whether a trained run is measured, so that its scale and data matter."""
        return "seed" in self.measure

    @property
    def chained(self) -> bool:
        """Whether the run that fills it starts from another one or is evaluated on other data."""
        return self.trained and bool(self.init_from or self.eval_data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The paper's statement that rows (or columns) are better than others in the columns (or rows) `at`."""

    ours: tuple[str, ...]
    over: tuple[str, ...]
    at: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with all its cells, row by row. `name` is the name of its file: dba/2. `columns` are the printed ones.

    seeds: the number of runs of cells that do not have their own. charts: pairs of columns that the report draws
    against each other. reference: the row that it compares all others with; empty for none. claims: those of the paper.
    needs, costs: columns with the words that the report has for them (`subquad.results.answers`). added: rows of the
    user, which the file does not have (`subquad.results.added_rows`).
    counted: whether its cells are among those of the five papers.
    """

    name: str
    title: str
    source: str
    seeds: int
    rows: tuple[Line, ...]
    columns: tuple[Line, ...]
    cells: Mapping[Place, Cell]
    charts: tuple[tuple[str, str], ...] = ()
    reference: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)
    costs: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    counted: bool = True

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.cells.values())

    @property
    def takes_rows(self) -> bool:
        """Whether users may add rows: each row is an attention of this project, and nothing is printed."""
        attentions = all(row.overrides and row.overrides[0].startswith("attention=") for row in self.rows)
        return attentions and not any(cell.printed for cell in self)

    @property
    def counts(self) -> str:
        """How many runs its trained cells are means of: "5", "4 or 5"; empty where nothing is trained."""
        return " or ".join(map(str, sorted({cell.seeds for cell in self if cell.trained})))

    def select(self, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> "Table":
        """The table with these rows and columns only, means left out where a part is; empty selects all.

        A name that only the other axis has is taken there. Raises UserError at one that neither has.
        """
        known = [{line.name for line in lines} for lines in (self.rows, self.columns)]
        moved = [[n for n in columns if n in known[0] - known[1]], [n for n in rows if n in known[1] - known[0]]]
        kept = [
            _chosen(self, "row", [*(n for n in rows if n not in moved[1]), *moved[0]]),
            _chosen(self, "column", [*(n for n in columns if n not in moved[0]), *moved[1]]),
        ]
        names = [{line.name for line in lines} for lines in kept]
        hidden = {column for _, column in self.cells} - {line.name for line in self.columns}
        cells = {
            place: cell
            for place, cell in self.cells.items()
            if place[0] in names[0]
            and place[1] in names[1]
            and all(row in names[0] and column in names[1] | hidden for row, column in cell.mean)
        }
        needed = {part for cell in cells.values() for part in cell.mean}
        cells = {place: cell for place, cell in self.cells.items() if place in cells or place in needed}
        full = [
            tuple(line for line in lines if any(line.name == place[i] for place in cells))
            for i, lines in enumerate(kept)
        ]
        return replace(self, rows=full[0], columns=full[1], cells=cells)


_KEYS = {
    "title", "source", "metric", "seeds", "overrides", "columns", "rows", "printed", "cells", "charts", "reference",
    "needs", "costs", "claims", "counted", "first_seed",
}  # fmt: skip
_CELL_KEYS = {"overrides", "init_from", "eval_data", "measure", "seeds", "from_prior_work", "note", "unavailable"}
EMPTY = "The paper leaves this cell empty."
"""Why a cell is not run where the table prints a dash."""


def load(path: Path, name: str, added: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Table:
    """The table of a file; raises UserError, naming the file, if it does not follow the format.

    added: overrides of further rows by name, which come first.
    """
    try:
        node: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError, OSError) as error:  # OSError: a number alone
        mark = getattr(error, "problem_mark", None)
        cause = first_line(error) if mark is None else f"line {mark.line + 1}: {error.problem}"  # type: ignore[union-attr]
        raise UserError(f"{path} cannot be read ({cause}).") from None
    try:
        if added:
            node["rows"] = {row: list(overrides) for row, overrides in added.items()} | node["rows"]
        return _table(node, name)
    except UserError as error:
        raise UserError(f"Table {name}: {error}") from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(
            f"Table {name} is not as the format asks for ({error}); see subquad/results/table.py."
        ) from None


def _table(node: Any, name: str) -> Table:
    if unknown := [str(key) for key in node if key not in _KEYS]:
        raise UserError(f"there is no key {', '.join(unknown)}; the keys are {', '.join(sorted(_KEYS))}.")
    rows, columns = (_lines(node[kind]) for kind in ("rows", "columns"))
    if hidden := [row.name for row in rows if row.hidden]:
        raise UserError(f"row {hidden[0]} is hidden, and only columns may be.")
    shown = tuple(column for column in columns if not column.hidden)
    printed = _printed(node.get("printed", {}), rows, shown)
    single = node.get("cells") or {}
    places = [(row.name, column.name) for row in rows for column in columns]
    for pattern, settings in single.items():
        if unknown := [key for key in settings if key not in _CELL_KEYS]:
            raise UserError(f'cell "{pattern}" has no key {unknown[0]}; the keys are {", ".join(sorted(_CELL_KEYS))}.')
        if not any(fnmatchcase(" / ".join(place), pattern) for place in places):
            raise UserError(f'there is no cell "{pattern}"; write "row / column".')
    cells = {
        (row.name, column.name): _cell(
            node, row, column, printed,
            [s for pattern, s in single.items() if fnmatchcase(f"{row.name} / {column.name}", pattern)],
        )
        for row in rows
        for column in columns
    }  # fmt: skip
    given = {text for cell in cells.values() for text in (*cell.overrides, *cell.init_from)}
    if small := sorted(text for text in given if text.startswith(("scale=", "data=")) and text != "scale=paper"):
        raise UserError(f"{small[0]} belongs on the command line, where it marks the values as no reproduction.")
    if any(cell.seeds < 1 for cell in cells.values() if cell.trained):
        raise UserError("trained cells need seeds of at least 1.")
    charts = tuple((str(across), str(up)) for across, up in node.get("charts", ()))
    reference = str(node.get("reference", ""))
    needs, costs = ({str(k): str(v) for k, v in node.get(key, {}).items()} for key in ("needs", "costs"))
    named_columns = [*(name for pair in charts for name in pair), *needs, *costs]
    for kind, named, lines in (("column", named_columns, shown), ("row", [reference] * bool(reference), rows)):
        if unknown := [name for name in named if name not in {line.name for line in lines}]:
            raise UserError(f"there is no {kind} {unknown[0]}, which charts, needs, costs or reference names.")
    return Table(
        name=name, title=node["title"], source=node["source"], seeds=int(node.get("seeds", 0)), rows=rows,
        columns=shown, cells=cells, charts=charts, reference=reference, needs=needs, costs=costs,
        claims=tuple(_claim(given, rows, shown) for given in node.get("claims", ())),
        counted=bool(node.get("counted", True)),
    )  # fmt: skip


def _claim(given: Mapping[str, Sequence[str]], rows: Sequence[Line], columns: Sequence[Line]) -> Claim:
    ours, over, at = (tuple(map(str, given.get(key, ()))) for key in ("ours", "over", "at"))
    strange = [str(key) for key in given if key not in ("ours", "over", "at")]
    for lines, across in ((rows, columns), (columns, rows)):
        names, others = [line.name for line in lines if not line.mean], tuple(line.name for line in across)
        if ours and {*ours, *over} <= set(names) and {*at} <= set(others) and not strange:
            return Claim(ours=ours, over=over or tuple(name for name in names if name not in ours), at=at or others)
    named = ", ".join([*ours, *over, *at, *strange]) or "nothing"
    raise UserError(f"claims need the names of rows or of columns, not {named}.")


def _lines(node: Mapping[str, Any]) -> tuple[Line, ...]:
    lines = []
    for name, value in node.items():
        given = {"overrides": value} if isinstance(value, list) else dict(value or {})
        _check_keys(f'"{name}"', given, Line)
        mean = given.pop("mean", ())
        lists = {key: tuple(given.get(key, ())) for key in ("overrides", "init_from")}
        lines.append((Line(name=str(name), **given | lists), mean))
    plain = tuple(line.name for line, mean in lines if not mean)
    if unknown := [name for _, mean in lines if mean is not True for name in mean if name not in plain]:
        raise UserError(f"there is no {unknown[0]} to take a mean of; it averages {', '.join(plain)}.")
    return tuple(
        Line(**{key: getattr(line, key) for key in Line.__slots__} | {"mean": plain if mean is True else tuple(mean)})
        for line, mean in lines
    )


def _printed(
    node: Mapping[str, str], rows: Sequence[Line], columns: Sequence[Line]
) -> dict[tuple[str, str], Printed | None]:
    """By row and column; None is an empty cell, and what is not known is left out."""
    if unknown := [name for name in node if str(name) not in {row.name for row in rows}]:
        raise UserError(f"it prints a row {unknown[0]} that is not among its rows.")
    cells = {}
    for name, line in node.items():
        for column, text in zip(columns, split_line(line, len(columns), f"row {name}"), strict=True):
            if text != "?":
                cells[str(name), column.name] = Printed.parse(text)
    return cells


def _cell(
    node: Mapping[str, Any], row: Line, column: Line, printed: Mapping[tuple[str, str], Printed | None],
    own: Sequence[Mapping[str, Any]],
) -> Cell:  # fmt: skip
    place = row.name, column.name
    over_rows = tuple((part, column.name) for part in row.mean)
    over_columns = tuple((row.name, part) for part in column.mean)
    settings: list[Mapping[str, Any]] = [
        *({key: getattr(line, key) for key in _CELL_KEYS} for line in (column, row)),
        *own,
    ]
    reasons = [settings[i].get("unavailable") for i in (*range(2, len(settings)), 1, 0)]
    counts = [0, *(int(count) for s in (node, *settings) if (count := s.get("seeds")) is not None)]
    measure = _merged(s.get("measure", {}) for s in settings)
    if measure and "_target_" not in measure:
        raise UserError(f"measure of {row.name} / {column.name} has no _target_, which names its function.")
    empty = EMPTY if printed.get(place, ...) is None else ""
    return Cell(
        row=row.name,
        column=column.name,
        overrides=(*node.get("overrides", ()), *(override for s in settings for override in s.get("overrides", ()))),
        init_from=tuple(override for s in settings for override in s.get("init_from", ())),
        eval_data=_merged(s.get("eval_data", {}) for s in settings),
        metric=_metric([node.get("metric", {}), column.metric, row.metric], bool(measure)),
        measure=measure,
        mean=over_columns or over_rows,
        seeds=counts[-1],
        first_seed=int(node.get("first_seed", 0)),
        printed=printed.get(place),
        from_prior_work=any(s.get("from_prior_work") for s in settings),
        notes=tuple(str(s["note"]) for s in (settings[1], settings[0], *own) if s.get("note")),
        unavailable=str(next((reason for reason in reasons if reason), empty)),
    )


def _metric(parts: Sequence[Mapping[str, Any]], measured: bool) -> Metric:
    """The merged metric of a cell, without parts for the other kind of cell: `name` is `value` if it is measured."""
    for part in parts:
        _check_keys("metric", part, Metric)
    return Metric(**_merged(part for part in parts if "name" not in part or (part["name"] == "value") is measured))


def _check_keys(owner: str, given: Mapping[str, Any], kind: type) -> None:
    """Raises UserError for a key that is no field of a dataclass."""
    known = [field.name for field in fields(kind) if field.name != "name" or kind is Metric]
    if unknown := [str(key) for key in given if key not in known]:
        raise UserError(f"{owner} has no key {unknown[0]}; {hint(unknown[0], sorted(known))}")


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Later ones win."""
    return {key: value for part in parts for key, value in part.items()}


def _chosen(table: Table, kind: Literal["row", "column"], names: Sequence[str]) -> list[Line]:
    lines = table.rows if kind == "row" else table.columns
    known = {each: ", ".join(line.name for line in of) for each, of in (("row", table.rows), ("column", table.columns))}
    if unknown := [name for name in names if name not in {line.name for line in lines}]:
        other = "column" if kind == "row" else "row"
        raise UserError(
            f"table {table.name} has no {kind} {', '.join(unknown)}; its {kind}s are {known[kind]}; its {other}s are "
            f"{known[other]}.{' With attention=, a new row enters.' if kind == 'row' and table.takes_rows else ''}"
        )
    return [line for line in lines if not names or line.name in names]
