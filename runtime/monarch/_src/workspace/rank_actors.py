"""The actors of workspaces: one makes the copy on a host, two bring ranks to edited modules.

Runs in: procs. Those on ranks have a thread of their own, beside the actors whose code they change.
"""

from __future__ import annotations

import importlib
import sys
from functools import cached_property
from pathlib import Path

from monarch._src.actor.endpoint import Actor, endpoint
from monarch._src.actor.runtime import runtime
from monarch._src.host.workspace_paths import enter, workspace_paths
from monarch._src.workspace.copy import WorkspaceCopy
from monarch._src.workspace.module_reload import ModuleReloader, Reload, Stamp
from monarch._src.workspace.state.manifest import Changes, Manifest


class HostCopy(Actor):
    """The copy of a workspace on the host of its proc. See `WorkspaceCopy`."""

    __monarch_label__ = "the copy of the workspace"

    @cached_property
    def _copy(self) -> WorkspaceCopy:
        # Not made in a constructor, whose error would be a failure of the mesh as well.
        return WorkspaceCopy(Path(runtime().directory))

    @endpoint(instrument=False)
    def compare(self, wanted: Manifest) -> list[str]:
        """See `WorkspaceCopy.compare`. Raises OSError if there is no place for the copy."""
        return self._copy.compare(wanted)

    @endpoint(instrument=False)
    def receive(self, pieces: list[tuple[str, bytes]]) -> None:
        """See `WorkspaceCopy.receive`."""
        self._copy.receive(pieces)

    @endpoint(instrument=False)
    def commit(self, directories: list[tuple[str, str]], imports: list[str]) -> Changes:
        """See `WorkspaceCopy.commit`."""
        return self._copy.commit(directories, imports)


class RankWorkspace(Actor):
    """Has a rank that started before a copy was in force import from it."""

    __monarch_label__ = "the workspace"
    __monarch_main_thread__ = "never"

    def __init__(self) -> None:
        """Take the modules of this process as loaded from the files that are there now."""
        self._reloader = ModuleReloader()
        self._reloader.mark_loaded()

    @endpoint(instrument=False)
    def use_copy(self, reload: bool) -> list[Reload]:
        """Import from the copy of this host from now on; with `reload`, reload edited modules."""
        paths = workspace_paths(runtime().directory)
        if paths is None:
            return []
        enter(paths)
        importlib.invalidate_caches()
        return self._reloader.reload_edited([vars(sys.modules["__main__"])]) if reload else []


class RankReloader(Actor):
    """Reloads changed modules on request."""

    __monarch_label__ = "the reload"
    __monarch_main_thread__ = "never"

    def __init__(self, known: dict[str, Stamp], since: float) -> None:
        """See `ModuleReloader`."""
        self._reloader = ModuleReloader(known, since)

    @endpoint(instrument=False)
    def reload_edited(self) -> list[Reload]:
        """Reload and return modules edited since the last call; also rebind names of cells."""
        return self._reloader.reload_edited([vars(sys.modules["__main__"])])
