"""The current state of a rank's ipywidgets as plain HTML.

Runs in: procs; imported there, so it imports nothing of Jupyter. The model of a widget on a
rank is out of reach of any page, but its state can still be shown.
"""

from __future__ import annotations

import base64
import html
import sys
from collections.abc import Iterable
from typing import Any, cast


def is_widget(value: object) -> bool:
    """Whether it is a widget of ipywidgets that shows something."""
    widgets = sys.modules.get("ipywidgets")
    return widgets is not None and isinstance(value, widgets.DOMWidget)


def widget_html(widget: Any) -> str:
    """A widget and its children as HTML."""
    kind = {base.__name__ for base in type(widget).__mro__}
    if "Box" in kind:
        along = "row" if "HBox" in kind else "column"
        titles = cast("Iterable[str]", getattr(widget, "titles", ()) or ())
        parts = [widget_html(child) for child in widget.children if child is not None]
        named = list(titles) + [""] * (len(parts) - len(list(titles)))
        inside = "".join(
            (f"<div><strong>{html.escape(name)}</strong></div>" if name else "")
            + f"<div>{part}</div>"
            for name, part in zip(named, parts, strict=False)
        )
        return f'<div style="display: flex; flex-direction: {along}; gap: 0.4em">{inside}</div>'
    if "HTML" in kind:
        return f"<span>{_described(widget)}{widget.value}</span>"
    if "Image" in kind and isinstance(widget.value, bytes):
        data = base64.b64encode(widget.value).decode()
        return f'<img src="data:image/{html.escape(widget.format)};base64,{data}">'
    if kind & {"_IntProgress", "IntProgress", "FloatProgress", "_FloatProgress"}:
        part, whole = widget.value - widget.min, widget.max - widget.min
        share = f"{part / whole:.0%}" if whole else ""
        said = f"{widget.value:g} of {widget.max:g}"
        bar = f'<progress value="{part:g}" max="{whole:g}"></progress>'
        return f"<span>{_described(widget)}{bar} {share} ({said})</span>"
    if "Output" in kind:
        texts = [str(one.get("text", "")) for one in widget.outputs]
        return f"<pre>{html.escape(''.join(texts))}</pre>"
    if "Button" in kind:
        return f"<span>[{html.escape(str(widget.description))}]</span>"
    value = getattr(widget, "value", None)
    if value is None:
        return f"<code>{html.escape(repr(widget))}</code>"
    shown = value if isinstance(value, str) else repr(value)
    return f"<span>{_described(widget)}<code>{html.escape(shown)}</code></span>"


def _described(widget: Any) -> str:
    said = str(getattr(widget, "description", "") or "")
    return f"{html.escape(said)}: " if said else ""
