"""A future: its call, the ranks that have answered, and its value or error once it is done."""

from __future__ import annotations

from typing import Any, cast

from monarch import observe
from monarch.actor import ActorError, Future, SupervisionError, ValueMesh, WorkFuture
from monarch.frontend import endpoint_text, name_ranks
from monarch.observe import OpenCall
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.failures import failures_html, failures_text
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.source_lines import CellNames
from monarch_jupyter.rendering.tables import error_html
from monarch_jupyter.rendering.value_contents import value_text
from monarch_jupyter.rendering.values import value_mesh_html, value_mesh_text


def future_text(future: Future[Any], cell_names: CellNames) -> str:
    """Pending, with the ranks it waits for; or its value or error."""
    if not future.done:
        return f"Future, pending{_of(future, waits=True)}; `.get()` or `await` waits for it"
    error = future.exception()
    if error is None:
        value: object = future.get()
        if isinstance(value, ValueMesh):
            shown = value_mesh_text(cast("ValueMesh[Any]", value))
        else:
            shown = value_text(value)
        return f"Future, done{_of(future)}: {shown}"
    if isinstance(error, ActorError | SupervisionError) and error.failures:
        return f"Future, failed{_of(future)}: {failures_text(error.failures, cell_names)}"
    return f"Future, failed{_of(future)}: {type(error).__name__}: {error}"


def future_html(future: Future[Any], cell_names: CellNames) -> Html:
    """The same as HTML."""
    if not future.done:
        state = html.toned("◌ pending", "busy")
        return html.card("Future, ", state, _of(future, waits=True))
    error = future.exception()
    if error is None:
        head = html.join(["Future, ", html.toned("● done", "good"), _of(future)])
        value: object = future.get()
        if isinstance(value, ValueMesh):
            shown = value_mesh_html(cast("ValueMesh[Any]", value))
        else:
            shown = html.code(value_text(value))
        return html.card(html.element("div", head), shown)
    head = html.join(["Future, ", html.toned("✕ failed", "bad"), _of(future)])
    if isinstance(error, ActorError | SupervisionError) and error.failures:
        return html.card(html.element("div", head), failures_html(error.failures, cell_names))
    return html.card(html.element("div", head), error_html(error))


def _of(future: Future[Any], *, waits: bool = False) -> str:
    if isinstance(future, WorkFuture):
        return f", {future.what}" + (f": {future.progress}" if waits and future.progress else "")
    call = observe.call_of(future)
    if call is None:
        return ""
    said = f", {endpoint_text(call.actor_class, call.endpoint)} on {call.mesh}"
    return said + (_waits_for(call) if waits else "")


def _waits_for(call: OpenCall) -> str:
    owing = name_ranks(call.owing)
    answered = call.ranks - len(call.owing)
    said = (
        f": {answered} of {call.ranks} {'rank has' if call.ranks == 1 else 'ranks have'} answered"
    )
    return said + (f", not {owing}" if answered and owing else "")
