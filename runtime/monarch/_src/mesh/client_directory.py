"""The working directory and import path of this process, for the procs that it spawns.

Runs in: the process that spawns. Owns nothing.
"""

from __future__ import annotations

import os
import site
import sys
from functools import lru_cache


def working_directory() -> str:
    """The working directory of this process; the root directory if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def clients_path(same_python: bool) -> list[str]:
    """The directories that this process imports from, so that procs find the same modules.

    `same_python`: the procs run in the interpreter of this process, and share its library.
    """
    path = _absolute(working_directory(), tuple(sys.path))
    if not same_python:
        # Another interpreter has its own library, and a command may start another interpreter.
        owned = {os.path.dirname(os.__file__), *site.getsitepackages()}
        zipped = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
        path = [
            p
            for p in path
            if os.path.basename(p) != zipped
            and not any(p == o or p.startswith(o + os.sep) for o in owned)
        ]
    return list(dict.fromkeys(path))


@lru_cache(maxsize=1)
def _absolute(here: str, path: tuple[str, ...]) -> list[str]:
    return [os.path.abspath(os.path.join(here, p)) for p in path]
