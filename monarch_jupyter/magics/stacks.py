"""`%monarch stacks` and `%monarch flame`: the places of ranks, now and over some seconds."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from monarch.observe import FlameGraph, Stacks
from monarch_jupyter.actions.stacks import flame, select_procs, stacks
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Arguments, Option, whole_number
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


def _run_flame(invocation: Invocation) -> FlameGraph:
    options = invocation.arguments
    if len(options.positionals) > 1:
        raise CommandError("flame takes one mesh or slice, or none for all of them")
    names = options.positionals
    mesh = select_procs(names[0], invocation.namespace) if names else None
    return flame(
        mesh, seconds=_whole(options, "--time", 5), rate=_whole(options, "--rate", 100),
        threads=options.has("--threads"), native=options.has("--native"),
    )  # fmt: skip


def _whole(options: Arguments, name: str, usual: int) -> int:
    given = options.values(name)
    if not given:
        return usual
    return whole_number(name, given[-1])


FLAME = Command(
    name="flame",
    usage="flame [NAME[dim=0:4]]",
    summary="sample ranks for some seconds: a flame graph of where they spend their time",
    run=_run_flame,
    options=(
        Option("--time", "how many seconds to sample (default: 5)", takes="SECONDS"),
        Option("--rate", "samples of each rank in a second (default: 100)", takes="N"),
        Option("--threads", "all threads of your code, not only those that run actors"),
        Option("--native", "include functions of C and C++ libraries"),
    ),
    examples=("%monarch flame", "%monarch flame workers[gpus=0:4] --time 10"),
    complete=_complete,
)
