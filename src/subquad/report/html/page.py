"""Templates of this package to HTML files."""

import re
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from subquad.utils.atomic import atomic_write
from subquad.utils.display import as_typed

ASSETS = Path(__file__).parent / "assets"
"""Style sheets and scripts; vendor/ has those of others, with their licences."""


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("subquad.report.html"), autoescape=select_autoescape(default=True),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals["asset"] = lambda name: Markup((ASSETS / name).read_text(encoding="utf-8"))
    environment.filters |= {"marked": _marked, "breaks": _breaks, "linked": _linked}
    return environment


def _linked(text: str) -> Markup:
    """A text whose addresses are links; the punctuation behind one is no part of it."""
    return Markup(re.sub(r"https?://[^\s,;)]*[^\s,;).]", r'<a href="\g<0>">\g<0></a>', str(escape(text))))


def _breaks(name: str) -> Markup:
    """A name that may break between its words: FaceDetection."""
    return Markup(re.sub(r"(?<=[a-z])(?=[A-Z])", "<wbr>", str(escape(name))))


def _marked(text: str) -> Markup:
    """A line of Markdown: code is code, and a link is its text, because pages of the documentation are not here."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text.replace("\\|", "|"))
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(plain))))


def copy_assets(folder: Path) -> list[str]:
    """Copies what pages of the report load into assets/ of their folder, where it changed; returns the names."""
    names = [path.relative_to(ASSETS).as_posix() for path in sorted(ASSETS.rglob("*.*")) if path.is_file()]
    for name in names:
        source, target = ASSETS / name, folder / "assets" / name
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            with atomic_write(target, several=True) as place:
                shutil.copyfile(source, place)
    return [f"assets/{name}" for name in names]


def write_page(template: str, path: Path, content: dict[str, Any]) -> None:
    """Writes one page as a whole. `content` are the names that the template uses; all of them must be there."""
    write_whole(path, as_typed(_templates().get_template(template).render(content)))


def write_whole(path: Path, text: str) -> None:
    """Writes a file that appears at once, also where two programs write it. One that has this text is left alone."""
    with suppress(OSError, ValueError):
        if path.read_text(encoding="utf-8") == text:
            return
    with atomic_write(path, several=True) as place:
        place.write_text(text, encoding="utf-8", errors="replace")


def figure_svg(figure: Any) -> Markup:
    """A matplotlib figure as markup to stand in a page; its text stays selectable. Closes the figure."""
    import io

    from matplotlib import pyplot as plt

    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "subquad"}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    return Markup(buffer.getvalue().partition("<svg")[1] + buffer.getvalue().partition("<svg")[2])
