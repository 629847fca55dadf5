"""Attach to a kept session and bind its meshes in the notebook."""

from __future__ import annotations

from collections.abc import MutableMapping

from monarch import frontend, session
from monarch.actor import ActorMesh, ProcMesh
from monarch.session import AttachedSession, SessionError
from monarch_jupyter.actions.run_cell import ACTOR_NAME, adopt_cells
from monarch_jupyter.cells.displays import redirect, shared_displays
from monarch_jupyter.errors import CommandError
from monarch_jupyter.meshes.kept_sessions import check_holds_none
from monarch_jupyter.ranks.autoreload import ACTOR_NAME as RELOADER_NAME
from monarch_jupyter.ranks.autoreload import adopt


def attach(name: str | None = None, *, take: bool = False) -> AttachedSession:
    """Attach to the kept session with this name or mesh; None: the only session without a client.

    `take`: take the session over from a client that is still attached.

    Raises:
        CommandError: no such session exists, another client is attached, this kernel has meshes of
            its own, the session has other versions, or none of its worker hosts can be reached.
    """
    check_holds_none()
    try:
        found = session.attach(name, take=take)
    except (SessionError, OSError) as error:  # OSError: its hosts or keys
        raise CommandError(str(error)) from None
    for mesh in found.actor_meshes:
        adopt_cells(mesh)
        adopt(mesh)
    if shared_displays() is not None:
        redirect(found.proc_meshes)
    return found


def bind(mesh: ProcMesh | ActorMesh, namespace: MutableMapping[str, object]) -> str:
    """Bind a mesh to its name and return a line about it. Other variables stay."""
    if isinstance(mesh, ActorMesh):
        target = frontend.call_target_of(mesh)
        name, what = target.name, f"{target.class_name} on {target.procs.name}"
        if name in (ACTOR_NAME, RELOADER_NAME):
            return ""  # actors of the extension: they run cells and reload modules
    else:
        name, what = mesh.name, "processes"
    if not name.isidentifier():
        return f"{name!r} ({what}) is no variable name; monarch_jupyter.attach returns the mesh"
    there = namespace.get(name)
    if there is not None and not isinstance(there, ProcMesh | ActorMesh):
        kind = type(there).__name__
        return f"{name} ({what}) is not bound, since {name} is a {kind} here; `del {name}` first"
    namespace[name] = mesh
    return f"{name}: {what}, {len(mesh)} rank{'s' * (len(mesh) != 1)}"
