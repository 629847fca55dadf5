"""`%monarch ls`: the meshes of this kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monarch import observe
from monarch.observe import MeshSnapshot
from monarch_jupyter.commands.command import Command, Invocation
from monarch_jupyter.problems import CommandError
from monarch_jupyter.rendering.meshes import listing_html, listing_text


@dataclass(frozen=True)
class MeshListing:
    """The meshes at one moment, shown as a table."""

    meshes: Sequence[MeshSnapshot]

    def __repr__(self) -> str:
        return listing_text(self.meshes)

    def _repr_html_(self) -> str:
        return listing_html(self.meshes)


def ls() -> MeshListing:
    """All meshes that this kernel has made and not stopped."""
    return MeshListing(tuple(observe.snapshot()))


def _run(invocation: Invocation) -> MeshListing:
    if invocation.arguments.positionals:
        name = invocation.arguments.positionals[0]
        raise CommandError(f"ls takes nothing; `%monarch show {name}` shows a single mesh")
    return ls()


COMMAND = Command(
    name="ls",
    usage="ls",
    summary="list the meshes of this kernel: dims, state, ranks, actors",
    run=_run,
)
