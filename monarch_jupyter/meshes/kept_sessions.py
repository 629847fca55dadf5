"""Sessions that outlive the kernel, by name."""

from __future__ import annotations

import os

from monarch import session
from monarch.actor import ProcMesh
from monarch.session import SessionError
from monarch_jupyter.errors import CommandError


def session_name(mesh: str) -> str:
    """The name of the session that keeps a mesh of this kernel: that of its first kept mesh.

    Raises:
        CommandError: another kept session has this name.
    """
    for one in session.sessions():
        if one.kept_as is not None and one.client_pid == os.getpid():
            return one.kept_as
        if one.kept_as == mesh:
            raise CommandError(
                f"{mesh} is already a kept session; `%monarch attach {mesh}` attaches to it, "
                f"`monarch kill {mesh}` in a shell ends it, or choose another name"
            )
    return mesh


def keep_mesh(name: str, mesh: ProcMesh) -> None:
    """Let that mesh outlive the kernel, in the session of that name.

    Raises:
        CommandError: another client has taken the name meanwhile.
    """
    try:
        session.keep(name, [mesh])
    except SessionError as error:
        raise CommandError(str(error)) from None


def free_sessions() -> list[str]:
    """The names of kept sessions to which no client is attached."""
    return [one.kept_as for one in session.sessions() if one.kept_as and one.state == "detached"]
