"""`display(...)` on a rank: makes the mime bundle there, to be shown in the cell of the call.

Runs in: procs; imported there, so it imports neither Jupyter nor the libraries of values. Owns: the
route of this process's displays; a `Route` travels with each actor and bootstrap function, and the
last one counts. Invariants: a bundle is text and base64, so the notebook needs neither the class
nor its library. A display never fails because the notebook is gone. An
ipywidget of a rank is shown as plain HTML of its state, since its model is out of reach of a page.
"""

from __future__ import annotations

import base64
import builtins
import html
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

from monarch.actor import Actor, Point, Port, ProcMesh, context

Bundle = dict[str, str]
"""By mime type: text, or base64 of an image."""

_METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_latex_": "text/latex",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
}
SHOWN = ("text/plain", *_METHODS.values())
_IPYTHONS = "IPython.core.display_functions"


def bundle_of(value: object) -> Bundle:
    """The bundle of a value: from its own methods, as IPython calls them, and always as text.

    A widget is live only in its own kernel; the bundle has its current state as HTML.
    """
    found: Bundle = {"text/plain": _plain(value)}
    if isinstance(value, type):
        return found
    if is_figure(value):
        file = io.BytesIO()
        cast("Any", value).savefig(file, format="png", bbox_inches="tight")
        return {**found, "image/png": base64.b64encode(file.getvalue()).decode()}
    if is_widget(value):
        return {**found, "text/html": widget_html(value)}
    whole = _call_method(value, "_repr_mimebundle_")
    if isinstance(whole, tuple):
        whole = cast("tuple[Any, ...]", whole)[0]
    if isinstance(whole, Mapping):
        for mime, data in cast("Mapping[str, object]", whole).items():
            if mime in SHOWN:
                found[mime] = _as_text(data)
    for method, mime in _METHODS.items():
        if mime not in found:
            data = _call_method(value, method)
            if isinstance(data, tuple):  # with metadata, as IPython allows
                data = cast("tuple[Any, ...]", data)[0]
            if data is not None:
                found[mime] = _as_text(data)
    return found


def _call_method(value: object, method: str) -> Any:
    function = getattr(value, method, None)
    if not callable(function):
        return None
    try:
        return function()
    except Exception:
        return None  # as in IPython: another form may work


def _as_text(data: object) -> str:
    return base64.b64encode(data).decode() if isinstance(data, bytes) else str(data)


def _plain(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"


def is_figure(value: object) -> bool:
    """Whether it is a figure of matplotlib."""
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, figures.Figure)


class Route:
    """The route of displays to the notebook; unpickling it on a rank installs it there."""

    def __init__(self, port: Port[Any]) -> None:
        self._port = port

    def __reduce__(self) -> tuple[Any, ...]:
        return _install_route, (self._port,)


class Redirected(Actor):
    """An actor without endpoints; it carries a `Route` to its rank."""

    __monarch_label__ = "the displays"
    __monarch_main_thread__ = "never"


def _install_route(port: Port[Any]) -> None:
    global _route
    instance = context().actor_instance
    proc: ProcMesh = instance.proc
    point: Point = instance.proc_ref.point_of(instance.proc_id)
    _route = port, (proc.name, proc.uid, point.rank, dict(point))
    install()


_route: tuple[Port[Any], tuple[str, str, int, dict[str, int]]] | None = None


def show(bundle: Bundle) -> None:
    """Show a bundle in the cell that caused this call; without a notebook, print its text."""
    if _route is None:
        sys.stdout.write(bundle["text/plain"] + "\n")
    else:
        port, rank = _route
        port.send((context().origin, rank, bundle))


def display(*values: object, **_: object) -> None:
    """Show values in the notebook's cell."""
    for value in values:
        show(bundle_of(value))


def install() -> None:
    """Make this the `display` of builtins and of IPython in this process."""
    cast("Any", builtins).display = display
    for name in (_IPYTHONS, "IPython.display"):
        module: Any = sys.modules.get(name)
        if module is not None:
            module.display = display
    known = any(isinstance(finder, _DisplayFinder) for finder in sys.meta_path)
    if _IPYTHONS not in sys.modules and not known:
        sys.meta_path.insert(0, _DisplayFinder())


class _DisplayFinder(MetaPathFinder):
    """Replaces IPython's `display` by this module's when a program imports it.

    IPython's own only prints where no shell of IPython runs. Nothing else of IPython is changed.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _IPYTHONS:
            return None
        sys.meta_path.remove(self)  # for good: the module is imported once
        spec = find_spec(fullname)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                cast("Any", module).display = cast("Any", builtins).display

            loader.exec_module = exec_module
        return spec


def take_open_figures() -> list[Bundle]:
    """Close all open figures of pyplot and return their bundles, as a cell's end shows them."""
    plots: Any = sys.modules.get("matplotlib.pyplot")
    if plots is None:
        return []
    found = [bundle_of(plots.figure(number)) for number in plots.get_fignums()]
    plots.close("all")
    return found


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
