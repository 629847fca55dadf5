"""What axe finds wrong with a part of a page: roles, names, contrast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

AXE = Path(__file__).parents[2] / "labextension" / "node_modules" / "axe-core" / "axe.min.js"


def assert_accessible(page: Page, selector: str) -> None:
    """No rule of axe is broken there, by any of its rules for WCAG 2.2 AA and good practice."""
    page.add_script_tag(path=AXE)
    found: list[dict[str, Any]] = page.evaluate(
        "selector => axe.run(selector).then(({violations}) => violations)", selector
    )
    told = [
        f"{one['id']}: {one['help']}: {node['html']}\n  {node['failureSummary']}"
        for one in found
        for node in one["nodes"]
    ]
    assert not told, "\n".join(told)
