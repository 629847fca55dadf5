"""`%monarch sync`: copy directories of your program to the hosts of a mesh."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from monarch.actor import ActorError, ProcMesh, SupervisionError
from monarch.tools.config import Workspace, WorkspaceSync
from monarch_jupyter.errors import CommandError, one_line
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.meshes.registry import complete_meshes, find_mesh, no_name


def sync(
    mesh: ProcMesh | str, *directories: str | os.PathLike[str], exclude: Sequence[str] = ()
) -> WorkspaceSync:
    """Copy directories to the hosts of a mesh, or what has changed since.

    Returns when all hosts have the copies.

    Without directories, the working directory is copied. Edited modules are loaded again on ranks.

    Raises:
        CommandError: there is no such mesh or directory; the home directory or `/` was to be
            copied; a host cannot place the files, or is lost.
    """
    found = find_mesh(mesh) if isinstance(mesh, str) else mesh
    hosts = found.host_mesh
    if hosts is None:
        raise CommandError(
            f"{found.name} was attached to, and this kernel does not have its hosts; sync the "
            "hosts of its job: job.state().NAME.sync_workspace(DIRECTORY)"
        )
    try:
        workspace = Workspace(directories or ["."], exclude=exclude)
        for path in workspace.dirs:
            if path in (Path.home(), Path(path.anchor)):
                raise CommandError(
                    f"{path} is more than a program; name the directory of yours: "
                    f"`%monarch sync {found.name} ~/project`"
                )
        return hosts.sync_workspace(workspace, auto_reload=True).get()
    except (OSError, ValueError, RuntimeError, ActorError, SupervisionError) as error:
        raise CommandError(one_line(str(error))) from error


def _run(invocation: Invocation) -> None:
    words = invocation.arguments.positionals
    if not words:
        raise no_name("sync", "the name of a mesh, and a directory")
    mesh = find_mesh(words[0], invocation.namespace)
    done = sync(mesh, *words[1:], exclude=invocation.arguments.values("--exclude"))
    sys.stdout.write(f"{done!r}\n")


def _complete(words: Sequence[str], namespace: MutableMapping[str, object]) -> list[str]:
    return [] if words else complete_meshes(words, namespace)


COMMAND = Command(
    name="sync",
    usage="sync NAME [DIRECTORY ...]",
    summary="copy directories of your program to the hosts of a mesh; only what changed is sent",
    run=_run,
    options=(
        Option(
            "--exclude", "leaves out files and directories, as data or '*.ckpt'",
            takes="PATTERN", repeated=True,
        ),
    ),
    examples=("%monarch sync workers ~/project --exclude data",),
    complete=_complete,
)  # fmt: skip
