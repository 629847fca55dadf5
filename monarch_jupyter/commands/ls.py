"""`%monarch ls`: the meshes of this kernel, and what was counted of their endpoints."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from monarch import observe
from monarch.observe import MeshSnapshot, Metrics
from monarch_jupyter.arguments import Option
from monarch_jupyter.commands.command import Command, Invocation
from monarch_jupyter.problems import CommandError
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.meshes import listing_html, listing_text
from monarch_jupyter.rendering.metrics import endpoints_html, endpoints_text


@dataclass(frozen=True)
class MeshListing:
    """The meshes at one moment and their endpoints, shown as tables.

    `every`: endpoints from both sides and in full; or else the busiest, as ranks ran them.
    """

    meshes: Sequence[MeshSnapshot]
    metrics: Metrics
    every: bool = False

    def __repr__(self) -> str:
        endpoints = endpoints_text(self.metrics, self._uids(), every=self.every)
        listing = listing_text(self.meshes)
        return f"{listing}\n\n{endpoints}" if endpoints else listing

    def _repr_html_(self) -> str:
        endpoints = endpoints_html(self.metrics, self._uids(), every=self.every)
        return html.join([listing_html(self.meshes), html.card(endpoints) if endpoints else ""])

    def _uids(self) -> set[str]:
        return {mesh.uid for mesh in self.meshes}


def ls(*, metrics: bool = False) -> MeshListing:
    """All meshes that this kernel has made and not stopped, and their endpoints.

    `metrics`: with everything that was counted of those.
    """
    return MeshListing(tuple(observe.snapshot()), observe.metrics(), metrics)


def _run(invocation: Invocation) -> MeshListing:
    if invocation.arguments.positionals:
        name = invocation.arguments.positionals[0]
        raise CommandError(f"ls takes no names; `%monarch show {name}` shows a single mesh")
    return ls(metrics=invocation.arguments.has("--metrics"))


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return [] if words else ["--metrics"]


COMMAND = Command(
    name="ls",
    usage="ls [--metrics]",
    summary="list the meshes of this kernel: dims, state, ranks, actors, and their endpoints",
    run=_run,
    options=(
        Option(
            "--metrics",
            "all that was counted of endpoints, as ranks ran them and as they were called by "
            "each adverb: calls, errors, times, sizes",
        ),
    ),
    complete=_complete,
)
