"""`%monarch restart`: end a mesh that has lost ranks, and spawn it again as it was spawned."""

from __future__ import annotations

import sys

from monarch_jupyter.actions.restart import restart_named
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import complete_meshes, no_name


def _run(invocation: Invocation) -> None:
    names = invocation.arguments.positionals
    if not names:
        raise no_name("restart", "the name of a mesh")
    name, *more = names
    if more:
        raise CommandError("restart takes one mesh at a time")
    sys.stdout.write(f"{restart_named(name, invocation.namespace)}\n")


COMMAND = Command(
    name="restart",
    usage="restart NAME",
    summary="end a mesh, and spawn it again with the options of its first spawn",
    run=_run,
    complete=complete_meshes,
)
