"""Views as plain HTML, for exports and readers without a kernel.

A widget in a saved notebook stays empty wherever its JavaScript or its state is missing, and
nbconvert prefers it to the HTML beside it. So what is exported has no widget in it.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, cast

WIDGET = "application/vnd.jupyter.widget-view+json"


class StaticViews:
    """Decides, for one shell, whether views are shown as widgets or as the HTML beside them.

    The user chooses by `%monarch static`; otherwise the front end decides. nbconvert, nbclient and
    papermill execute notebooks without a person and accept no input. Their outputs are read later,
    without a kernel, so views are plain HTML there.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._formatter = shell.display_formatter
        self._chosen: bool | None = None

    @property
    def on(self) -> bool:
        """Whether views are plain HTML now."""
        return _is_headless(self._shell) if self._chosen is None else self._chosen

    def turn(self, on: bool | None) -> None:
        """Turn plain HTML on or off, or leave the choice to the front end (None)."""
        self._chosen = on

    def install(self) -> None:
        """Leave widgets out of all that the shell formats, while plain HTML is on."""
        whole = self._formatter.format

        def format_without_widgets(*args: Any, **kwargs: Any) -> Any:
            data, metadata = whole(*args, **kwargs)
            if WIDGET in data and self.on:
                leave_out_widget(data)
            return data, metadata

        self._formatter.format = format_without_widgets

    def restore(self) -> None:
        """Leave the shell as it was before `install`."""
        del self._formatter.format  # the method of the class shows again


def _is_headless(shell: Any) -> bool:
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return False
    request: Any = kernel.get_parent("shell") or {}
    return request.get("content", {}).get("allow_stdin") is False


def leave_out_widget(data: MutableMapping[str, Any]) -> bool:
    """Remove the widget from a mime bundle that has HTML too; return whether there was one."""
    if WIDGET not in data or "text/html" not in data:
        return False
    del data[WIDGET]
    return True


def static_copy(path: Path) -> tuple[Path, int]:
    """Write a copy of a saved notebook without widgets beside it; where, and how many were in it.

    Raises:
        OSError: the file cannot be read, or the copy cannot be written. ValueError: it is no
        notebook.
    """
    notebook: Any = json.loads(path.read_text("utf-8"))
    if not isinstance(notebook, dict) or "cells" not in notebook:
        raise ValueError("it has no cells")
    found = cast("dict[str, Any]", notebook)
    bundles = [
        output["data"]
        for cell in found["cells"]
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    number = sum(leave_out_widget(data) for data in bundles)
    if not any(WIDGET in data for data in bundles):
        found.get("metadata", {}).pop("widgets", None)
    copy = path.with_name(f"{path.stem}.static{path.suffix}")
    copy.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return copy, number


_shared: StaticViews | None = None


def shared_static_views() -> StaticViews | None:
    """The views of the loaded extension; None if it is not loaded."""
    return _shared


def share_static_views(views: StaticViews | None) -> None:
    """Make these the views that commands turn on and off."""
    global _shared
    _shared = views
