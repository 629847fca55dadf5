"""The files of the page: the same modules and styles as those of the notebook's widgets.

They are in `monarch_jupyter`, which is built on this package and is not imported here: its folder
is looked up by name.

Runs in: the admin server.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

PAGE = "dashboard.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
_NAME = re.compile(r"[a-z][a-z_0-9]{0,63}\.(?:html|js|css)")


def page_file(name: str) -> tuple[bytes, str] | None:
    """A file of that name and its media type; None if there is none."""
    folder = _folder()
    if folder is None or _NAME.fullmatch(name) is None:
        return None
    path = folder / name
    try:
        return path.read_bytes(), TYPES[path.suffix]
    except OSError:
        return None


def has_page() -> bool:
    """Whether the package with the page is installed."""
    return page_file(PAGE) is not None


def _folder() -> Path | None:
    spec = find_spec("monarch_jupyter")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "widgets" / "js"
