"""`monarch mcp`: start the server, if what it needs is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from monarch._src.admin.audit import ActionLog, usual_path
from monarch._src.cli.mcp.tools import Scope

INSTALL = "pip install 'monarch-jupyter[mcp]'"
_PACKAGES = ("mcp", "mcp_types", "anyio")


def run(
    bases: Sequence[str] | None, names: Sequence[str], *, owner: bool, audit: str | None
) -> int:
    """Serve until standard input ends; return 1 if the server cannot start."""
    try:
        from monarch._src.cli.mcp.server import serve
    except ModuleNotFoundError as error:
        # Releases before 2 have no mcp_types.
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        print(
            f"monarch mcp: the server needs {error.name}, which is not installed; {INSTALL}",
            file=sys.stderr,
        )
        return 1
    actions = None
    try:
        if owner:
            actions = ActionLog(usual_path() if audit is None else Path(audit))
        elif audit is not None:
            raise ValueError("--audit logs the actions of an owner; give --owner too")
        if sys.stdin.isatty():
            print(
                "monarch mcp: an AI agent starts this command and talks to it over standard input; "
                "Ctrl-C ends it",
                file=sys.stderr,
            )
        serve(Scope(bases, names), actions)
    except (ValueError, OSError) as error:
        print(f"monarch mcp: {error}", file=sys.stderr)
        return 1
    finally:
        if actions is not None:
            actions.close()
    return 0
