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


def check_holds_none() -> None:
    """Check that this kernel can take up a kept session.

    Raises:
        CommandError: this kernel holds a kept session, and a kernel has one session.
    """
    for one in session.sessions():
        if one.kept_as is not None and one.client_pid == os.getpid() and one.state == "live":
            raise CommandError(
                f"this kernel holds the session {one.kept_as}; `%monarch detach` lets it go, and "
                "its meshes live on"
            )


def waiting_lines() -> list[str]:
    """A line for each kept session that waits for a kernel, with the magic that attaches to it."""
    lines: list[str] = []
    for one in session.sessions():
        if one.kept_as and one.state == "detached":
            others = [mesh for mesh in one.meshes if mesh != one.kept_as]
            meshes = f" (meshes: {', '.join(one.meshes)})" if others else ""
            lines.append(
                f"{one.kept_as}{meshes} was kept and waits; `%monarch attach {one.kept_as}` takes "
                "it up"
            )
    return lines


def free_sessions() -> list[str]:
    """The names of kept sessions to which no client is attached."""
    return [one.kept_as for one in session.sessions() if one.kept_as and one.state == "detached"]
