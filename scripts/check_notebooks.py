"""Refuse a committed notebook that has outputs (they go stale) or uses a private module."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat

PRIVATE = re.compile(r"\bmonarch\._src\b|\bfrom\s+monarch\s+import\s+_src\b")


def complaints(path: Path) -> Iterator[str]:
    notebook = nbformat.read(path, as_version=4)
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        if cell.outputs or cell.execution_count is not None:
            yield f"{path}: cell {index} has outputs: clear them before committing"
        if PRIVATE.search(cell.source):
            yield f"{path}: cell {index} uses monarch._src: take the public module"


def main() -> None:
    paths = sorted(
        path
        for path in Path("notebooks").rglob("*.ipynb")
        if ".ipynb_checkpoints" not in path.parts
    )
    found = [line for path in paths for line in complaints(path)]
    print(*found, f"{len(paths)} notebooks, {len(found)} complaints", sep="\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
