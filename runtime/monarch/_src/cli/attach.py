"""`monarch attach`: use a kept session from a Python prompt or a script."""

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
from monarch._src.system.interpreter_exit import exit_status


def run(name: str | None, script: str | None, arguments: Sequence[str], *, take: bool) -> int:
    """Attach to the session, run the script or a prompt, and detach.

    Returns 1 if attaching fails, otherwise the exit status of the script.
    """
    if script is not None and not os.path.exists(script):
        print(f"monarch attach: no such script: {script}", file=sys.stderr)
        return 1
    # As `python` does, so that modules beside the script (or in this directory) can be imported.
    sys.path.insert(0, "" if script is None else os.path.dirname(os.path.abspath(script)))
    # The public module, as in a notebook: it also sets up where faults and output are shown.
    from monarch import session as sessions

    try:
        session = sessions.attach(name, take=take)
    except (SessionError, OSError) as error:  # OSError: a host or a key file
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
        return exit_status(end)
    finally:
        with suppress(SessionError):  # another client has taken it over, or it has ended
            sessions.detach()
    return 0


def _prompt(name: str, names: dict[str, Any]) -> None:
    listed = ", ".join(key for key in names if key != "session") or "no meshes"
    with suppress(ImportError):
        import_module("readline")  # line editing and history
    banner = f"session {name!r}: {listed}. Leaving this prompt detaches; the session keeps running."
    code.interact(banner, local={"__name__": "__console__", **names}, exitmsg="")
