"""Hooks of MkDocs: tutorials become pages, and the navigation follows the index of each shelf.

In the repository, pages link to notebooks as files; on the site such a link leads to their pages.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

# `make docs` installs MkDocs, and `make check` runs without.
from mkdocs.config.defaults import MkDocsConfig  # pyright: ignore[reportMissingImports]
from mkdocs.structure.files import File, Files  # pyright: ignore[reportMissingImports]
from mkdocs.structure.pages import Page  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
_NOTEBOOK = re.compile(r"\]\((?:\.\./)+notebooks/(\w+)\.ipynb\)")
_ENTRY = re.compile(r"\[`?([^\]`]+)`?\]\(([\w/]+\.md)\)")
_REASON = re.compile(r'^```(\w+) no-run="[^"]*"$', re.MULTILINE)


def page_of(notebook: Path) -> str:
    """A notebook as Markdown: its text, and its cells as blocks of code."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    parts: list[str] = []
    for cell in cells:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of each shelf in the order of its index."""
    nav: list[Any] = config.nav or []
    for entry in nav:
        if isinstance(entry, dict):
            (shelf,) = entry
            folder = Path(entry[shelf][0]).parent
            if shelf == "Tutorials":
                names = sorted(one.stem for one in NOTEBOOKS.glob("*.ipynb"))
                entry[shelf] += [f"{folder}/{name}.md" for name in names]
            else:
                entry[shelf] += _pages(Path(config.docs_dir), folder)
    return config


def _pages(docs: Path, folder: Path) -> list[Any]:
    found: list[Any] = []
    for title, link in _ENTRY.findall((docs / folder / "index.md").read_text()):
        page = folder / link
        if page.name == "index.md":
            found.append({title: [str(page), *_pages(docs, page.parent)]})
        else:
            found.append(str(page))
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook."""
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        name = f"tutorials/{notebook.stem}.md"
        files.append(File.generated(config, name, content=page_of(notebook)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to notebooks to their pages; drop the words of fences that tests read."""
    return _REASON.sub(r"```\1", _NOTEBOOK.sub(r"](\1.md)", markdown))
