"""`%monarch stacks`: where ranks are in the program at this moment."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from monarch.observe import Stacks
from monarch_jupyter.actions.stacks import select_procs, stacks
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import mesh_names


def _run(invocation: Invocation) -> Stacks:
    names = invocation.arguments.positionals
    if len(names) > 1:
        raise CommandError("stacks takes one mesh or slice, or none for all of them")
    mesh = select_procs(names[0], invocation.namespace) if names else None
    options = invocation.arguments
    return stacks(mesh, full=options.has("--full"), idle=options.has("--idle"))


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return [] if words else mesh_names()


COMMAND = Command(
    name="stacks",
    usage="stacks [NAME[dim=0:4]]",
    summary="show where ranks are in the program, the odd ones by name; finds the one that hangs",
    run=_run,
    options=(
        Option("--full", "all threads, with the frames of the runtime"),
        Option("--idle", "show ranks that report to be idle, too"),
    ),
    examples=("%monarch stacks", "%monarch stacks workers[gpus=0:4]"),
    complete=_complete,
)
