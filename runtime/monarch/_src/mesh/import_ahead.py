"""Has the host import libraries for ranks to come, before a mesh is spawned.

Runs in: the client.
"""

from __future__ import annotations

import sys

from monarch._src.config import AUTO, settings
from monarch._src.mesh import client_imports
from monarch._src.mesh.client import ClientSession, current_session, session
from monarch._src.mesh.spawn_options import clients_path
from monarch._src.wire.messages import ImportAhead

_told: tuple[ClientSession | None, frozenset[str]] = (None, frozenset())
"""The session that was last told, and the libraries that were imported or noted then."""


def import_ahead() -> None:
    """Have this host import what this program uses of large libraries, for ranks to come.

    The ranks of a mesh that is spawned later have torch, say, as they begin. The program uses what
    this process has imported, and what actors and functions import that it has sent to ranks. The
    call returns at once, and has no effect if there is nothing new since the last call. It starts
    the session of this process if there is none. The notebook calls it after each cell. Without a
    call, the imports begin as the first mesh is spawned. See the setting `preload`.

    Raises:
        OSError: there is no place for the session directory, or no process can be started.
        TypeError, ValueError: a setting in the environment is wrong.
    """
    global _told
    imported = frozenset(client_imports.LIBRARIES & sys.modules.keys())
    imported |= frozenset(client_imports.noted_libraries())
    current = current_session()
    if not imported or (imported == _told[1] and current in (None, _told[0])):
        return  # a session that was ended since is not started again for this
    if settings().preload != AUTO:
        return
    held = session()
    imports = client_imports.client_imports(clients_path(True), held.changed_environment())
    if imports is not None:
        held.runtime.routes.tell_agent_at("", ImportAhead(imports))
        _told = (held, imported)
