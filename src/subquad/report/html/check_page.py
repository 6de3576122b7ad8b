"""The page of a check of a GPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from subquad.report.html.page import write_page
from subquad.utils.display import duration


def write_check_page(path: Path, state: Mapping[str, Any], parts: Mapping[str, str]) -> None:
    """Writes one HTML file.

    Args:
        state: the content of check.json, as scripts/check_gpu.py writes it.
        parts: what each part checks.
    """
    checks = [check | {"time": duration(check["seconds"]), "values": _values(check)} for check in state["checks"]]
    groups = {part: [check for check in checks if check["item"][0] == part] for part in parts}
    counts = {status: sum(c["status"] == status for c in checks) for status in ("failed", "skipped", "passed")}
    write_page(
        "check.html.j2", path,
        {
            "state": state, "counts": counts, "not_passed": [c for c in checks if c["status"] != "passed"],
            "groups": [{"name": part, "about": parts[part], "checks": c} for part, c in groups.items() if c],
            "speed": [
                {"name": name, "reference": name == "flash softmax", "compiled": check["item"][2], **row}
                for check in groups["speed"]
                for name, row in check["results"].get("rows", {}).items()
            ],
            "setting": next((c["results"]["setting"] for c in groups["speed"] if c["results"]), ""),
        },
    )  # fmt: skip


def _values(check: Mapping[str, Any]) -> str:
    """The worst finding relative to its limit."""
    numbers = [f for f in check["findings"] if f["limit"] and not isinstance(f["value"], str)]
    if not numbers:
        return ""
    worst = max(numbers, key=lambda f: f["value"] / f["limit"])
    return f"{worst['value']:.1e} of {worst['limit']:.1e}: {worst['what']}"
