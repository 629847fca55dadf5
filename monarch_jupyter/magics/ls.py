"""`%monarch ls`: the meshes of this kernel, and metrics of their endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monarch import observe
from monarch.observe import MeshSnapshot, Metrics
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.kept_sessions import waiting_lines
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.meshes import listing_html, listing_text
from monarch_jupyter.rendering.metrics import endpoints_html, endpoints_text
from monarch_jupyter.rendering.telemetry import measured_html, measured_text


@dataclass(frozen=True)
class MeshListing:
    """The meshes at one moment and their endpoints, shown as tables.

    `every`: all endpoints, seen from both sides, and the programs' own measurements; otherwise the
    busiest endpoints, as ranks ran them. `waiting`: a line for each kept session without a kernel.
    """

    meshes: Sequence[MeshSnapshot]
    metrics: Metrics
    every: bool = False
    waiting: Sequence[str] = ()

    def __repr__(self) -> str:
        uids = self._uids()
        parts = [listing_text(self.meshes), endpoints_text(self.metrics, uids, every=self.every)]
        if self.every:
            parts.append(measured_text(self.metrics, uids))
        parts.append("\n".join(self.waiting))
        return "\n\n".join(part for part in parts if part)

    def _repr_html_(self) -> str:
        uids = self._uids()
        tables = [endpoints_html(self.metrics, uids, every=self.every)]
        if self.every:
            tables.append(measured_html(self.metrics, uids))
        cards = [html.card(table) for table in tables if table]
        if self.waiting:
            cards.append(html.card(*[html.element("div", line) for line in self.waiting]))
        return html.join([listing_html(self.meshes), *cards])

    def _uids(self) -> set[str]:
        return {mesh.uid for mesh in self.meshes}


def ls(*, metrics: bool = False) -> MeshListing:
    """All meshes that this kernel has made and not stopped, and their endpoints.

    `metrics`: include all metrics.
    """
    return MeshListing(
        tuple(observe.snapshot()), observe.metrics(), metrics, tuple(waiting_lines())
    )


def _run(invocation: Invocation) -> MeshListing:
    if invocation.arguments.positionals:
        name = invocation.arguments.positionals[0]
        raise CommandError(f"ls takes no names; `%monarch show {name}` shows a single mesh")
    return ls(metrics=invocation.arguments.has("--metrics"))


COMMAND = Command(
    name="ls",
    usage="ls [--metrics]",
    summary="list the meshes of this kernel: dims, state, ranks, actors, and their endpoints",
    run=_run,
    options=(
        Option(
            "--metrics",
            "all that was counted of endpoints, as ranks ran them and as they were called by "
            "each adverb: calls, errors, times, sizes; and what programs have measured by spans "
            "and instruments",
        ),
    ),
)
