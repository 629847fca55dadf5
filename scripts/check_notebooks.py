"""Refuse a committed notebook whose outputs are missing or old, or that uses a private module."""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat

PRIVATE = re.compile(r"\bmonarch\._src\b|\bfrom\s+monarch\s+import\s+_src\b")
WIDGET = "application/vnd.jupyter.widget-view+json"
DIGEST = "executed_source"
REMEDY = "run `make notebooks`"


def notebooks() -> list[Path]:
    """The notebooks of this checkout."""
    paths = Path("notebooks").rglob("*.ipynb")
    return sorted(path for path in paths if ".ipynb_checkpoints" not in path.parts)


def digest_of(notebook: nbformat.NotebookNode) -> str:
    """A digest of the sources of all code cells."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]


def complaints(path: Path) -> Iterator[str]:
    notebook = nbformat.read(path, as_version=4)
    if notebook.metadata.get(DIGEST) != digest_of(notebook):
        yield f"{path}: its outputs are missing or of older cells: {REMEDY}"
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        if PRIVATE.search(cell.source):
            yield f"{path}: cell {index} uses monarch._src: take the public module"
        for output in cell.outputs:
            data = output.get("data", {})
            if WIDGET in data and "text/html" in data:
                yield f"{path}: cell {index} shows a widget, which no reader sees: {REMEDY}"


def main() -> None:
    paths = notebooks()
    found = [line for path in paths for line in complaints(path)]
    print(*found, f"{len(paths)} notebooks, {len(found)} complaints", sep="\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
