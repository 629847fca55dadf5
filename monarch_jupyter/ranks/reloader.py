"""The actor that reloads edited modules on a rank.

Runs in: procs; imported there, so it imports nothing of Jupyter. On a thread of its own, beside the
actors whose code it changes.
"""

from __future__ import annotations

import sys

from monarch.actor import Actor, endpoint
from monarch_jupyter.ranks.module_reload import ModuleReloader, Reload, Stamp


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
