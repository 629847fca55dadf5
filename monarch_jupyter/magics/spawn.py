"""`%monarch spawn` and `%monarch restart`: make a mesh of processes, or make it again."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence

from monarch import frontend, observe
from monarch.actor import ProcMesh
from monarch_jupyter.actions.restart_ranks import restart_ranks
from monarch_jupyter.actions.spawn import check_free, restart_named, spawn_request
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.magics.spawn_request import (
    parse_spawn,
)
from monarch_jupyter.meshes.registry import complete_meshes, no_name
from monarch_jupyter.meshes.selection import parse_selection
from monarch_jupyter.meshes.survivors import selection_text, slices_of


def _run(invocation: Invocation) -> ProcMesh:
    request = parse_spawn(invocation.arguments)
    check_free(request.name, invocation.namespace)
    mesh = spawn_request(request)
    invocation.namespace[request.name] = mesh
    return mesh


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    given = {word.partition("=")[0] for word in words}
    return [f"{dim}=" for dim in ("gpus", "hosts") if dim not in given] if words else []


COMMAND = Command(
    name="spawn",
    usage=(
        "spawn NAME [dim=N ...] [--preload MODULE] [--env KEY=VALUE] [--keep] [--restart] "
        "[--job JOB]"
    ),
    summary="start a mesh of processes here or on a job, bind it to NAME and show it",
    run=_run,
    options=(
        Option(
            "--preload", "import this module once, before the processes are forked", "MODULE", True
        ),
        Option("--env", "set this environment variable in every process", "KEY=VALUE", True),
        Option("--keep", "let it outlive this kernel; `%monarch attach NAME` attaches to it again"),
        Option("--restart", "start a rank that dies again, with its actors"),
        Option(
            "--job",
            "spawn on the hosts of this job: its name, or the path of its record",
            "JOB[:MESH]",
        ),
    ),
    examples=(
        "%monarch spawn workers gpus=8",
        "%monarch spawn workers gpus=4 --preload torch",
        "%monarch spawn workers gpus=8 --job training",
    ),
    complete=_complete,
)


def _run_restart(invocation: Invocation) -> None:
    names = invocation.arguments.positionals
    if not names:
        raise no_name("restart", "the name of a mesh")
    name, *more = names
    if "[" in " ".join(names):
        selection = parse_selection(" ".join(names))
        sys.stdout.write(f"{restart_ranks(selection, invocation.namespace)}\n")
        return
    if more:
        raise CommandError("restart takes one mesh at a time")
    sys.stdout.write(f"{restart_named(name, invocation.namespace)}\n")


def _complete_restart(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    """Meshes, and the dead ranks of each."""
    if words:
        return []
    dead = [
        f"{mesh.name}[{selection_text(one)}]"
        for mesh in observe.meshes()
        if mesh.sizes and (ranks := frontend.failed_ranks(mesh))
        for one in slices_of(mesh.sizes, [mesh.extent.point_of_rank(rank) for rank in ranks])
    ]
    return [*complete_meshes(words, namespace), *dead]


RESTART = Command(
    name="restart",
    usage="restart NAME | NAME[dim=A:B, ...]",
    summary="end a mesh and spawn it again; or start some ranks again in their places",
    run=_run_restart,
    examples=(
        "%monarch restart workers",
        "%monarch restart workers[gpus=3]",
    ),
    complete=_complete_restart,
)
