"""What mkdocs does beside its own: pages that nobody listed get a place, and links to source files get pages.

On GitHub a link such as ../src/subquad/specs.py opens the file. In the site it opens a page with its text.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

SOURCE = re.compile(r"\]\((?:\.\./)+([^)#\s]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "bash", ".md": "markdown"}


def on_config(config: Any) -> Any:
    """Lists the pages that are there: those named in mkdocs.yml, in its order, then all others."""
    there = {path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md")}
    config.nav = _present(config.nav, there)
    if others := sorted(there - set(_names(config.nav))):
        config.nav.append({"More": others})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds a page for every source file that a page links to."""
    root = Path(config.config_file_path).parent
    linked = {path for file in files.documentation_pages() for path, _ in SOURCE.findall(file.content_string)}
    for path in sorted(linked):
        if (root / path).is_file():
            files.append(
                File.generated(
                    config, f"source/{path}.md", content=_page(root, path), inclusion=InclusionLevel.NOT_IN_NAV
                )
            )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Points links to source files at their pages."""
    known = {file.src_uri for file in files}

    folders = page.file.src_uri.count("/")

    def pointed(link: re.Match[str]) -> str:
        target = f"source/{link[1]}.md"
        return f"]({'../' * folders}{target})" if target in known else link[0]

    return markdown if page.file.src_uri.startswith("source/") else SOURCE.sub(pointed, markdown)


def _page(root: Path, path: str) -> str:
    fence = "`" * 4
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n{fence}{language}\n{(root / path).read_text()}\n{fence}\n"


def _present(nav: list[Any], there: set[str]) -> list[Any]:
    """The navigation without pages that do not exist and empty sections; "folder/*" becomes the pages of a folder."""
    kept: list[Any] = []
    for entry in nav:
        if isinstance(entry, str):
            folder = entry.removesuffix("*")
            kept += [page for page in sorted(there) if page.startswith(folder)]
            continue
        [(title, target)] = entry.items()
        target = _present(target, there) if isinstance(target, list) else target
        if target and (isinstance(target, list) or target in there):
            kept.append({title: target})
    return kept


def _names(nav: list[Any]) -> list[str]:
    found: list[str] = []
    for entry in nav:
        [target] = [entry] if isinstance(entry, str) else entry.values()
        found += _names(target) if isinstance(target, list) else [target]
    return found
