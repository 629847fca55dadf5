"""`%monarch torchrun`, `%%monarch torchrun`: run a script, or the cell, on ranks of its own."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from monarch.actor import HostMesh
from monarch.spmd import torchrun, torchrun_options
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.job_hosts import hosts_of
from monarch_jupyter.rendering.source_lines import rank_cell_filename

NAME = "torchrun"


def _run(invocation: Invocation) -> None:
    words: Sequence[str] = invocation.arguments.positionals
    hosts: HostMesh | None = None
    if words[:1] == ("--job",):
        if len(words) < 2:
            raise CommandError("--job takes the name of a job; for example --job training:trainers")
        job, _, mesh = words[1].partition(":")
        hosts, words = hosts_of(job, mesh, None), words[2:]
    source = invocation.cell
    if source is None and not words:
        raise CommandError("torchrun needs a script; for example `%monarch torchrun train.py`")
    if source is not None:
        if not source.strip():
            raise CommandError("there is nothing to run; write the script below the line")
        # The magic's own line stays in, so that line numbers are those the cell shows.
        source = f"# %%monarch {NAME}\n{source}"
    filename = rank_cell_filename(invocation.number, NAME)
    if source is not None:
        compile(source, filename, "exec", dont_inherit=True)  # before processes start
    try:
        torchrun(words, hosts=hosts, source=source, source_name=filename)
    except (ValueError, FileNotFoundError, ModuleNotFoundError) as error:
        raise CommandError(str(error).removeprefix("monarch torchrun: ")) from None


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    job = [] if words else ["--job"]
    options = words[2:] if words[:1] == ["--job"] else words
    try:
        return [*job, *torchrun_options(options)]
    except ModuleNotFoundError:  # there is no torch whose options could be read
        return job


COMMAND = Command(
    name=NAME,
    usage="torchrun [--job JOB[:MESH]] [OPTIONS OF torchrun] SCRIPT [ARGUMENT ...]",
    summary="run a script on fresh ranks; %%monarch runs the cell instead of a script",
    run=_run,
    examples=(
        "%monarch torchrun --nproc-per-node 4 train.py --lr 0.1",
        "%%monarch torchrun --nproc-per-node 4",
    ),
    complete=_complete,
    takes_cell=True,
    verbatim=True,
)
