"""Write the sections of docs/reference/tables.md anew, from the schema.

    python scripts/write_tables.py

The text before the first table and after the last one stays.
"""

from __future__ import annotations

from pathlib import Path

from monarch._src.telemetry.sql.state.schema import TABLES
from monarch._src.telemetry.sql.state.views import VIEWS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "tables.md"
AFTER = "\n## How a query runs\n"


def sections() -> str:
    """All tables and views, as Markdown."""
    parts: list[str] = []
    for table in TABLES.values():
        rows = [f"| `{one.name}` | {one.type} | {one.doc} |" for one in table.sent]
        parts.append(_section(table.name, table.doc, rows))
    for view in VIEWS.values():
        rows = [f"| `{one.name}` | {one.type} | {one.doc} |" for one in view.columns]
        parts.append(_section(view.name, view.doc, rows))
    return "\n".join(parts)


def _section(name: str, doc: str, rows: list[str]) -> str:
    return "\n".join([f"## {name}", "", doc, "", "| column | type | |", "|---|---|---|", *rows, ""])


def main() -> None:
    """Rewrite the page."""
    page = PAGE.read_text()
    before, _, rest = page.partition("\n## hosts\n")
    after = rest.partition(AFTER)[2]
    PAGE.write_text(f"{before}\n{sections()}{AFTER}{after}")


if __name__ == "__main__":
    main()
