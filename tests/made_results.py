"""Results of tables with given values, for tests of views."""

from subquad.results.model import FULL, CellResult, CellResults, TableResults
from subquad.results.statistics import summarise
from subquad.results.verdict import cell_verdict


def results_with(table, values=None, scope=FULL, missing=None):
    """A table whose cells have these values by seed, and lack these data."""

    def result(place, cell):
        own, lacks = (values or {}).get(place, {}), (missing or {}).get(place, "")
        summary = summarise(own) if own else None
        return CellResult(
            scope=scope, verdict=cell_verdict(cell, own, scope.full, bool(lacks)), values=own, summary=summary,
            text=summary.text(cell.digits) if summary else "", missing_data=lacks,
        )  # fmt: skip

    cells = {
        place: CellResults(cell=cell, anchor="", command="", results=(result(place, cell),))
        for place, cell in table.cells.items()
    }
    return TableResults(table=table, command="", cells=cells)
