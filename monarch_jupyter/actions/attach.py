"""Attach to a kept session and bind its meshes in the notebook."""

from __future__ import annotations

from collections.abc import MutableMapping

from monarch import observe, session
from monarch.actor import ActorMesh, ProcMesh
from monarch.session import AttachedSession, SessionError
from monarch_jupyter.actions.run_cell import ACTOR_NAME, adopt_cells
from monarch_jupyter.cells.displays import redirect, shared_displays
from monarch_jupyter.errors import CommandError
from monarch_jupyter.ranks.autoreload import ACTOR_NAME as RELOADER_NAME
from monarch_jupyter.ranks.autoreload import adopt


def attach(name: str | None = None, *, take: bool = False) -> AttachedSession:
    """Take up the kept session of that name, or of which that is a mesh; None: the only free one.

    `take`: also from a client that holds it and lives.

    Raises:
        CommandError: there is none, somebody holds it, this kernel has meshes of its own, it was
            made with other versions, or none of its worker hosts can be reached.
    """
    try:
        found = session.attach(name, take=take)
    except (SessionError, OSError) as error:  # of its hosts and keys is the second
        raise CommandError(str(error)) from None
    for mesh in found.actor_meshes:
        adopt_cells(mesh)
        adopt(mesh)
    if shared_displays() is not None:
        redirect(found.proc_meshes)
    return found


def bind(mesh: ProcMesh | ActorMesh, namespace: MutableMapping[str, object]) -> str:
    """Bind a mesh to its name; a line that says so. What else has that name is left alone."""
    if isinstance(mesh, ActorMesh):
        target = observe.call_target_of(mesh)
        name, what = target.name, f"{target.class_name} on {target.procs.name}"
        if name in (ACTOR_NAME, RELOADER_NAME):
            return ""  # ours: they run the cells of `%%monarch on`, and reload modules
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
