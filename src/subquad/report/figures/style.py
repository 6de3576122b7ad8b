"""The style of all figures: colours that colour-blind readers can tell apart, dark text, light grids."""

from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
"""The colours of Okabe and Ito (2008) without yellow, whose contrast on white is low; then a grey."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SEQUENTIAL = "cividis"
"""The colour map of matrices, for readers with and without colour vision deficiency (Nuñez et al. 2018)."""

DIVERGING = "PuOr"


def panels(rows: int, columns: int, width: float = 4.2, height: float = 3.4, **settings: Any) -> tuple[Any, Any]:
    """A figure and its axes as a rows x columns array; sizes of a panel in inches. pyplot does not keep the figure."""
    from matplotlib.figure import Figure  # heavy, and needed once a figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **settings)


def shade(share: float) -> Any:
    """The colour at a position from 0 to 1 of the colour map of matrices."""
    import matplotlib

    return matplotlib.colormaps[SEQUENTIAL](share)


def line_style(place: int) -> dict[str, Any]:
    """Colour and marker of line number `place`, so that either suffices to tell lines apart."""
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}


def lengths_axis(axes: Any, lengths: Any, label: str = "tokens") -> None:
    """A logarithmic axis with a tick at each measured length."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(lengths), [f"{n:,}" for n in sorted(lengths)])
    axes.xaxis.minorticks_off()
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)


def fit(figure: Any, width: float) -> None:
    """Makes a figure `width` inches wide, as it stands in a paper, with letters of 5 to 8 points."""
    from matplotlib.text import Text

    share = width / figure.get_figwidth()
    figure.set_size_inches(width, max(share, 0.6) * figure.get_figheight())
    for axes in figure.axes:
        axes.tick_params(labelsize=min(8, max(5, 10 * share)))
    for text in figure.findobj(Text):
        text.set_fontsize(min(8, max(5, text.get_fontsize() * share)))


def say_missing(figure: Any, missing: list[str]) -> None:
    """A note below the panels, wrapped to their width, about values that could not be shown."""
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        room = int(18 * figure.get_figwidth()) - len(f"missing: {more}")  # 18 letters of this size an inch
        figure.supxlabel(f"missing: {missing[0][:room]}{more}", fontsize=7)
