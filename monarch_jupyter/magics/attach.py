"""`%monarch attach`: take up a session that has outlived its kernel."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence

from monarch_jupyter.actions.attach import attach, bind
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.kept_sessions import free_sessions


def _run(invocation: Invocation) -> None:
    names = invocation.arguments.positionals
    if len(names) > 1:
        raise CommandError("attach takes the name of one session")
    found = attach(names[0] if names else None, take=invocation.arguments.has("--take"))
    sys.stdout.write(f"attached to {found.name}\n")
    for mesh in (*found.proc_meshes, *found.actor_meshes):
        said = bind(mesh, invocation.namespace)
        if said:
            sys.stdout.write(f"  {said}\n")


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return [] if words else free_sessions()


COMMAND = Command(
    name="attach",
    usage="attach [NAME] [--take]",
    summary="attach to meshes spawned with --keep, after a restart or from another kernel",
    run=_run,
    options=(Option("--take", "take them over from a client that is still attached"),),
    examples=("%monarch attach workers",),
    complete=_complete,
)
