"""Where a client is and imports from: its procs are to be there, and find the same modules.

Runs in: whoever spawns. Owns nothing.
"""

from __future__ import annotations

import os
import site
import sys
from functools import lru_cache


def working_directory() -> str:
    """That of this process; the root if it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def clients_path(same_python: bool) -> list[str]:
    """Where this process imports from, so that procs find the same modules.

    `same_python`: they run in the interpreter of this process, and have its library.
    """
    path = _absolute(working_directory(), tuple(sys.path))
    if not same_python:
        # Another interpreter has a library of its own; a command may end in another.
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
