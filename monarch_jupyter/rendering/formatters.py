"""Teaches the notebook how Monarch's classes look; `monarch` itself knows nothing of notebooks.

Invariants: after `restore` every formatter is as it was before `install`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from monarch import observe
from monarch.actor import (
    ActorError,
    ActorMesh,
    HostMesh,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    ValueMesh,
)
from monarch.observe import MeshSnapshot
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.failures import failures_html, failures_text
from monarch_jupyter.rendering.frames import CellNames
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.meshes import mesh_html, mesh_text
from monarch_jupyter.rendering.values import values_html, values_text
from monarch_jupyter.rendering.words import extent_text


class Formatters:
    """The text and HTML of each class, in one shell."""

    def __init__(self, display_formatter: Any, cell_names: CellNames) -> None:
        self._formatter = display_formatter
        self._cell_names = cell_names
        self._before: list[tuple[Any, type, object]] = []

    def install(self) -> None:
        """Register all of them."""
        self._register(ProcMesh, proc_mesh_text, proc_mesh_html)
        self._register(ActorMesh, actor_mesh_text, actor_mesh_html)
        self._register(HostMesh, host_mesh_text, host_mesh_html)
        self._register(
            ValueMesh,
            lambda mesh: values_text(mesh.sizes, mesh.values()),
            lambda mesh: values_html(mesh.sizes, mesh.values()),
        )
        for kind in (MeshFailure, ActorError, SupervisionError):
            self._register(kind, self._failure_text, self._failure_html)

    def restore(self) -> None:
        """Take them back. Idempotent."""
        for formatter, kind, before in reversed(self._before):
            if before is None:
                formatter.pop(kind, None)
            else:
                formatter.for_type(kind, before)
        self._before.clear()

    def _register(
        self, kind: type, text: Callable[[Any], str], markup: Callable[[Any], Html]
    ) -> None:
        def pretty(value: object, printer: Any, cycle: bool) -> None:
            # Inside a list or a dict a picture of many lines would be no help.
            printer.text(text(value) if printer.output.tell() == 0 else repr(value))

        def styled(value: object) -> str:
            return markup(value)

        formatters: Mapping[str, Any] = self._formatter.formatters
        for mime, function in (("text/plain", pretty), ("text/html", styled)):
            formatter = formatters[mime]
            self._before.append((formatter, kind, formatter.for_type(kind, function)))

    def _failure_text(self, failed: Any) -> str:
        return failures_text(failed.failures, self._cell_names) or str(failed)

    def _failure_html(self, failed: Any) -> Html:
        if not failed.failures:
            return html.card(html.toned(str(failed), "bad"))
        return failures_html(failed.failures, self._cell_names)


def proc_mesh_text(mesh: ProcMesh) -> str:
    """A whole mesh as it is now; a slice or a stopped one in a line."""
    seen = _snapshot_of(mesh)
    return mesh_text(seen) if seen else _line(mesh)


def proc_mesh_html(mesh: ProcMesh) -> Html:
    """The same as HTML."""
    seen = _snapshot_of(mesh)
    return mesh_html(seen) if seen else html.card(_line(mesh))


def _snapshot_of(mesh: ProcMesh) -> MeshSnapshot | None:
    for seen in observe.snapshot():
        if seen.uid == mesh.uid:
            return seen if seen.sizes == mesh.sizes else None
    return None


def _line(mesh: ProcMesh) -> str:
    lives = any(other.uid == mesh.uid for other in observe.meshes())
    shown = "a slice of its ranks" if mesh.is_slice else "all of its ranks under other dims"
    what = shown if lives else "stopped"
    return f"{mesh.name} {extent_text(mesh.sizes)}, {what}"


def actor_mesh_text(mesh: ActorMesh) -> str:
    """What the mesh is called and what it is made of."""
    return f"{mesh.name} {extent_text(mesh.sizes)}: {mesh.class_name} on {mesh.procs.name}"


def actor_mesh_html(mesh: ActorMesh) -> Html:
    """The same as HTML."""
    head = html.join([html.element("strong", mesh.name), html.code(extent_text(mesh.sizes))], " ")
    return html.card(head, ": ", html.code(mesh.class_name), f" on {mesh.procs.name}")


def host_mesh_text(mesh: HostMesh) -> str:
    """The hosts and their dims."""
    return f"hosts {extent_text(mesh.sizes)}" if mesh.sizes else "this host"


def host_mesh_html(mesh: HostMesh) -> Html:
    """The same as HTML."""
    return html.card(host_mesh_text(mesh))
