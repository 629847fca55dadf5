"""Registers representations of Monarch's classes; `monarch` itself does not know notebooks.

Invariants: after `restore` every formatter is as it was before `install`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from monarch import actor, buffers, config, frontend, observe, rdma, session, supervision, testing
from monarch.actor import (
    ActorError,
    ActorMesh,
    Future,
    HostMesh,
    MeshFailure,
    ProcMesh,
    RankFailure,
    SupervisionError,
    ValueMesh,
    WorkFuture,
)
from monarch.debug import WaitingRanks
from monarch.frontend import name_ranks
from monarch.observe import (
    FlameGraph,
    MeshSnapshot,
    MeshStacks,
    Metrics,
    Profile,
    QueryResult,
    Stacks,
)
from monarch.session import AttachedSession
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.breakpoints import waiting_html, waiting_text
from monarch_jupyter.rendering.failures import failures_html, failures_text
from monarch_jupyter.rendering.futures import future_html, future_text
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.meshes import mesh_html, mesh_text
from monarch_jupyter.rendering.metrics import endpoints_html, endpoints_text
from monarch_jupyter.rendering.source_lines import CellNames
from monarch_jupyter.rendering.stacks import flame_html, flame_text, stacks_html, stacks_text
from monarch_jupyter.rendering.tables import (
    error_html,
    is_record,
    line_html,
    profile_html,
    profile_text,
    query_html,
    query_text,
    record_html,
    record_text,
)
from monarch_jupyter.rendering.telemetry import measured_html, measured_text
from monarch_jupyter.rendering.units import extent_text
from monarch_jupyter.rendering.values import value_mesh_html, value_mesh_text

PUBLIC = (actor, observe, session, supervision, rdma, buffers, testing, config)


class Formatters:
    """The text and HTML of each class, in one shell.

    `stacks_view` makes a view of stacks with buttons, if there is a page.
    """

    def __init__(
        self,
        display_formatter: Any,
        cell_names: CellNames,
        stacks_view: Callable[[Stacks], dict[str, Any]] | None = None,
    ) -> None:
        self._formatter = display_formatter
        self._cell_names = cell_names
        self._stacks_view = stacks_view
        self._before: list[tuple[Any, type, object]] = []

    def install(self) -> None:
        """Register all of them."""
        self._register(ProcMesh, proc_mesh_text, proc_mesh_html)
        self._register(ActorMesh, actor_mesh_text, actor_mesh_html)
        self._register(HostMesh, host_mesh_text, host_mesh_html)
        self._register(ValueMesh, value_mesh_text, value_mesh_html)
        self._register(
            Stacks,
            lambda found: stacks_text(found, self._cell_names),
            lambda found: stacks_html(found, self._cell_names),
        )
        self._register(
            MeshStacks,
            lambda found: stacks_text(Stacks((found,)), self._cell_names),
            lambda found: stacks_html(Stacks((found,)), self._cell_names),
        )
        self._register(
            FlameGraph,
            lambda found: flame_text(found, self._cell_names),
            lambda found: flame_html(found, self._cell_names),
        )
        for kind in (Future, WorkFuture):
            self._register(
                kind,
                lambda future: future_text(future, self._cell_names),
                lambda future: future_html(future, self._cell_names),
            )
        self._register(MeshSnapshot, mesh_text, mesh_html)
        self._register(Metrics, _metrics_text, _metrics_html)
        self._register(QueryResult, query_text, query_html)
        self._register(Profile, profile_text, profile_html)
        self._register(AttachedSession, attached_text, attached_html)
        self._register(
            WaitingRanks,
            lambda found: waiting_text(found, self._cell_names),
            lambda found: waiting_html(found, self._cell_names),
        )
        for kind in (MeshFailure, ActorError, SupervisionError):
            self._register(kind, self._failure_text, self._failure_html)
        self._register(
            RankFailure,
            lambda failure: failures_text([failure], self._cell_names),
            lambda failure: failures_html([failure], self._cell_names),
        )
        for kind in plain_kinds():
            self._register_plain(kind)
        if self._stacks_view is not None:
            whole = self._formatter.mimebundle_formatter
            self._before.append((whole, Stacks, whole.for_type(Stacks, self._view_of_stacks)))

    def restore(self) -> None:
        """Restore the previous ones. Idempotent."""
        for formatter, kind, before in reversed(self._before):
            if before is None:
                formatter.pop(kind, None)
            else:
                formatter.for_type(kind, before)
        self._before.clear()

    def _view_of_stacks(self, found: Stacks, **_: object) -> dict[str, Any] | None:
        view = self._stacks_view
        return None if view is None or not found.meshes else view(found)

    def _register_plain(self, kind: Any) -> None:
        """Register a class without its own representation, by its fields or its repr."""
        if issubclass(kind, BaseException):
            self._register(kind, None, error_html)
        elif is_record(kind):
            self._register(kind, record_text, record_html)
        else:
            self._register(kind, None, line_html)

    def _register(
        self, kind: type, text: Callable[[Any], str] | None, markup: Callable[[Any], Html]
    ) -> None:
        """`text` None: use the repr."""

        def pretty(value: object, printer: Any, cycle: bool) -> None:
            # Inside a list or a dict, a representation of many lines does not help.
            outermost = text is not None and printer.output.tell() == 0
            printer.text(text(value) if text is not None and outermost else repr(value))

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


PICTURED = (
    ProcMesh, ActorMesh, HostMesh, ValueMesh, Future, MeshSnapshot, Metrics, QueryResult, Stacks,
    FlameGraph, Profile, MeshStacks, AttachedSession, MeshFailure, RankFailure, ActorError,
    SupervisionError, WorkFuture,
)  # fmt: skip
"""Classes that have their own representation."""


def plain_kinds() -> list[Any]:
    """All other public classes with instances, except actors, which belong to users."""
    names = [(module, name) for module in PUBLIC for name in module.__all__]
    found = dict.fromkeys(getattr(module, name) for module, name in names)
    return [
        kind
        for kind in found
        if isinstance(kind, type) and not issubclass(kind, (*PICTURED, actor.Actor))
    ]


def proc_mesh_text(mesh: ProcMesh) -> str:
    """The current state of a whole mesh; one line for a slice or a stopped mesh."""
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
    shown = f"its ranks {_ranks_text(mesh)}" if mesh.is_slice else _OTHER_DIMS
    ended = "stopped" if mesh.stopped else "no longer of this kernel"
    what = shown if lives else ended
    return f"{mesh.name} {extent_text(mesh.sizes)}, {what}"


_OTHER_DIMS = "all of its ranks under other dims"


def _ranks_text(mesh: ProcMesh | ActorMesh) -> str:
    """`gpus=2..3`: the ranks of a slice in the mesh of processes that was spawned."""
    places = frontend.coordinates(mesh)
    return name_ranks(places.point(at) for at in range(len(mesh)))


def _procs_text(mesh: ActorMesh) -> str:
    """` on workers`, and for a slice its ranks there."""
    target = frontend.call_target_of(mesh)
    whole = len(mesh) == target.procs.extent.nelements
    return f" on {target.procs.name}" + ("" if whole else f", {_ranks_text(mesh)}")


def actor_mesh_text(mesh: ActorMesh) -> str:
    """The name of the mesh, its dims, its class, its procs, and for a slice its ranks there."""
    target = frontend.call_target_of(mesh)
    return f"{target.name} {extent_text(mesh.sizes)}: {target.class_name}{_procs_text(mesh)}"


def actor_mesh_html(mesh: ActorMesh) -> Html:
    """The same as HTML."""
    target = frontend.call_target_of(mesh)
    head = html.join([html.element("strong", target.name), html.code(extent_text(mesh.sizes))], " ")
    return html.card(head, ": ", html.code(target.class_name), _procs_text(mesh))


def host_mesh_text(mesh: HostMesh) -> str:
    """The hosts and their dims."""
    return f"hosts {extent_text(mesh.sizes)}" if mesh.sizes else "this host"


def host_mesh_html(mesh: HostMesh) -> Html:
    """The same as HTML."""
    return html.card(host_mesh_text(mesh))


def attached_text(found: AttachedSession) -> str:
    """Its name, then its meshes."""
    lines = [proc_mesh_text(mesh) for mesh in found.proc_meshes]
    lines += [actor_mesh_text(mesh) for mesh in found.actor_meshes]
    return "\n".join([f"session {found.name}", *lines])


def attached_html(found: AttachedSession) -> Html:
    """The same as HTML."""
    shown = [*map(proc_mesh_html, found.proc_meshes), *map(actor_mesh_html, found.actor_meshes)]
    return html.card("session ", html.element("strong", found.name), *shown)


def _metrics_text(metrics: Metrics) -> str:
    uids = _meshes_of(metrics)
    parts = [endpoints_text(metrics, uids, every=True), measured_text(metrics, uids)]
    return "\n\n".join(part for part in parts if part) or "no endpoint was called yet"


def _metrics_html(metrics: Metrics) -> Html:
    uids = _meshes_of(metrics)
    shown = [endpoints_html(metrics, uids, every=True), measured_html(metrics, uids)]
    return html.card(html.join(shown) or "no endpoint was called yet")


def _meshes_of(metrics: Metrics) -> set[str]:
    rows = (*metrics.endpoints, *metrics.spans, *metrics.instruments)
    return {row.mesh_uid for row in rows}
