"""`monarch attach`: a session that is kept, at a Python prompt or for a script."""

from __future__ import annotations

import code
import os
import runpy
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from monarch._src.errors import SessionError


def run(name: str | None, script: str | None, arguments: Sequence[str], *, take: bool) -> int:
    """Take it up, run, let go. 1 if it cannot be had; else what the script ends with."""
    if script is not None and not os.path.exists(script):
        print(f"monarch attach: there is no script {script}", file=sys.stderr)
        return 1
    # As Python does, so that what is beside the script, or here, can be imported.
    sys.path.insert(0, "" if script is None else os.path.dirname(os.path.abspath(script)))
    # By the door that users take, above this layer: their faults and output have somewhere to go.
    door: Any = import_module("monarch.session")
    try:
        session = door.attach(name, take=take)
    except (SessionError, OSError) as error:  # of its hosts and keys is the second
        print(f"monarch attach: {error}", file=sys.stderr)
        return 1
    names: dict[str, Any] = {**session.procs, **session.actors}
    names = {key: mesh for key, mesh in names.items() if key.isidentifier()}
    try:
        if script is not None:
            sys.argv[:] = [script, *arguments]
            runpy.run_path(script, {**names, "session": session}, run_name="__main__")
        else:
            _prompt(session.name, {**names, "session": session})
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else _said(end)
    finally:
        with suppress(SessionError):  # it was taken over, or has ended
            door.detach()
    return 0


def _said(end: SystemExit) -> int:
    print(end.code, file=sys.stderr)
    return 1


def _prompt(name: str, names: dict[str, Any]) -> None:
    listed = ", ".join(key for key in names if key != "session") or "no meshes"
    with suppress(ImportError):
        import_module("readline")  # editing and history, where there is a terminal
    banner = f"session {name!r}: {listed}. The end of this prompt lets go of it; it lives on."
    code.interact(banner, local={"__name__": "__console__", **names}, exitmsg="")
