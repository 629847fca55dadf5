"""Monarch in a notebook: `%load_ext monarch_jupyter`, then `%monarch -h`.

Each subcommand is a function here too, for programs: `spawn`, `on`, `ls`, `ps`, `show`, `static`,
`stacks`, `flame`, `sql`, `dashboard`, `debug`, `stop`, `kill`, `logs`, `update`, `autoreload`,
`nested_asyncio`, `attach`, `detach`, `reap`, `error`, `explain`, `doctor`; and `value_grid`, which
`show` uses for values.

Procs import this package for the actor that runs cells. So this module imports neither IPython nor
Jupyter, and it imports the module of a function when the function is first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from monarch_jupyter.actions.attach import attach as attach
    from monarch_jupyter.actions.run_cell import on as on
    from monarch_jupyter.actions.spawn import spawn as spawn
    from monarch_jupyter.actions.stacks import flame as flame
    from monarch_jupyter.actions.stacks import stacks as stacks
    from monarch_jupyter.extension import Extension
    from monarch_jupyter.magics.autoreload import autoreload as autoreload
    from monarch_jupyter.magics.dashboard import dashboard as dashboard
    from monarch_jupyter.magics.debug import debug as debug
    from monarch_jupyter.magics.detach import detach as detach
    from monarch_jupyter.magics.doctor import doctor as doctor
    from monarch_jupyter.magics.error import error as error
    from monarch_jupyter.magics.explain import explain as explain
    from monarch_jupyter.magics.kill import kill as kill
    from monarch_jupyter.magics.logs import logs as logs
    from monarch_jupyter.magics.ls import ls as ls
    from monarch_jupyter.magics.nested_asyncio import nested_asyncio as nested_asyncio
    from monarch_jupyter.magics.ps import ps as ps
    from monarch_jupyter.magics.reap import reap as reap
    from monarch_jupyter.magics.show import show as show
    from monarch_jupyter.magics.sql import sql as sql
    from monarch_jupyter.magics.static import static as static
    from monarch_jupyter.magics.stop import stop as stop
    from monarch_jupyter.magics.update import update as update
    from monarch_jupyter.magics.value_grid import value_grid as value_grid

__all__ = [
    "attach",
    "autoreload",
    "dashboard",
    "debug",
    "detach",
    "doctor",
    "error",
    "explain",
    "flame",
    "kill",
    "logs",
    "ls",
    "nested_asyncio",
    "on",
    "ps",
    "reap",
    "show",
    "spawn",
    "sql",
    "stacks",
    "static",
    "stop",
    "update",
    "value_grid",
]

# Functions that the page calls too; every other one is beside its magic.
_ACTIONS = {
    "attach": "attach",
    "flame": "stacks",
    "on": "run_cell",
    "spawn": "spawn",
    "stacks": "stacks",
}

_extension: Extension | None = None


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    action = _ACTIONS.get(name)
    module = f"magics.{name}" if action is None else f"actions.{action}"
    return getattr(importlib.import_module(f"monarch_jupyter.{module}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Load the extension: `%load_ext monarch_jupyter` calls this."""
    global _extension
    from monarch_jupyter.extension import Extension
    from monarch_jupyter.meshes.kept_sessions import waiting_lines

    if _extension is None:
        extension = Extension(shell)
        extension.load()
        _extension = extension
        for line in waiting_lines():
            sys.stdout.write(f"{line}\n")


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Unload the extension: `%unload_ext monarch_jupyter` calls this. Meshes live on."""
    global _extension
    if _extension is not None:
        _extension.unload()
        _extension = None
