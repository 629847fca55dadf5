"""Monarch in a notebook: `%load_ext monarch_jupyter`, then `%monarch -h`.

Each subcommand is a function here too, for programs: `spawn`, `on`, `ls`, `show`, `stop`, `error`,
`doctor`.

Procs import this package for the actor that runs cells. So nothing of IPython or Jupyter is
imported here, and only what a name that is asked for needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from monarch_jupyter.commands.doctor import doctor as doctor
    from monarch_jupyter.commands.error import error as error
    from monarch_jupyter.commands.ls import ls as ls
    from monarch_jupyter.commands.on import on as on
    from monarch_jupyter.commands.show import show as show
    from monarch_jupyter.commands.spawn import spawn as spawn
    from monarch_jupyter.commands.stop import stop as stop
    from monarch_jupyter.extension import Extension

__all__ = ["doctor", "error", "ls", "on", "show", "spawn", "stop"]

_extension: Extension | None = None


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"monarch_jupyter.commands.{name}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """What `%load_ext monarch_jupyter` calls."""
    global _extension
    from monarch_jupyter.extension import Extension

    if _extension is None:
        extension = Extension(shell)
        extension.load()
        _extension = extension


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """What `%unload_ext monarch_jupyter` calls. Meshes live on."""
    global _extension
    if _extension is not None:
        _extension.unload()
        _extension = None
