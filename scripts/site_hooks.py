"""Hooks of mkdocs: adds unlisted pages and the report to the navigation, and generates pages for linked source files.

On GitHub, a link such as ../src/subquad/specs.py opens the file. In the site, it opens a page with the file's text. The
report has the results that the project keeps (docs/results), and none of this machine.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel
from mkdocs.structure.nav import Link

SOURCE = re.compile(r"\]\((?:\.\./)+([^)#\s]+)(#[^)\s]*)?\)")
REPORT = "results-report"
"""The folder of the site with the report."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "bash", ".md": "markdown", ".ipynb": "json"}


def on_config(config: Any) -> Any:
    """Sets the navigation: the existing pages named in mkdocs.yml, in its order, then all others."""
    existing = {path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md")}
    config.nav = _existing_entries(config.nav, existing)
    if others := sorted(existing - set(_names(config.nav))):
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


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Adds the report to the navigation, behind what to read first."""
    nav.items.insert(5, Link("All results", f"{REPORT}/index.html"))
    return nav


def on_post_build(config: Any) -> None:
    """Writes the report into the site."""
    script = Path(config.config_file_path).parent / "scripts" / "report.py"
    with tempfile.TemporaryDirectory() as empty:
        folder = Path(config.site_dir).resolve() / REPORT
        command = [sys.executable, str(script), f"output={folder}", f"paths.outputs={empty}"]
        subprocess.run(command, cwd=empty, check=True, capture_output=True)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replaces links to source files by links to their pages."""
    existing = {file.src_uri for file in files}
    depth = page.file.src_uri.count("/")

    def page_link(link: re.Match[str]) -> str:
        target = f"source/{link[1]}.md"
        return f"]({'../' * depth}{target})" if target in existing else link[0]

    return markdown if page.file.src_uri.startswith("source/") else SOURCE.sub(page_link, markdown)


def _page(root: Path, path: str) -> str:
    fence = "`" * 4
    language = LANGUAGES.get(Path(path).suffix, "text")
    return (
        f"---\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n{fence}{language}\n{(root / path).read_text()}\n{fence}\n"
    )


def _existing_entries(nav: list[Any], existing: set[str]) -> list[Any]:
    """The navigation without missing pages and empty sections; "folder/*" is replaced by the pages of a folder."""
    kept: list[Any] = []
    for entry in nav:
        if isinstance(entry, str):
            folder = entry.removesuffix("*")
            kept += [page for page in sorted(existing) if page.startswith(folder)]
            continue
        [(title, target)] = entry.items()
        target = _existing_entries(target, existing) if isinstance(target, list) else target
        if target and (isinstance(target, list) or target in existing):
            kept.append({title: target})
    return kept


def _names(nav: list[Any]) -> list[str]:
    names: list[str] = []
    for entry in nav:
        [target] = [entry] if isinstance(entry, str) else entry.values()
        names += _names(target) if isinstance(target, list) else [target]
    return names
