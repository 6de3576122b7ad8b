"""Templates of this package to HTML files."""

import base64
import hashlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from subquad.utils.atomic import atomic_write
from subquad.utils.display import as_typed


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("subquad.report.html"), autoescape=select_autoescape(default=True),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals["hash_of"] = _hash_of
    return environment


def _hash_of(template: str) -> str:
    """The hash of a script as the content security policy of a page names it."""
    digest = hashlib.sha256(_templates().get_template(template).render().encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


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
