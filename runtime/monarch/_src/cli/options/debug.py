"""Options of `monarch debug`."""

from __future__ import annotations

import argparse

from monarch._src.cli.options.common import Commands, add_command, add_where


def add(commands: Commands) -> None:
    """Add the `debug` command."""
    debug = add_command(
        commands,
        "debug",
        _debug,
        help="debug ranks that are paused at breakpoints",
        description="List the ranks of a session that are paused at breakpoints, debug one or "
        "several of them, and resume them. Reads commands from a terminal or a pipe; `help` lists "
        "them.",
    )
    debug.add_argument(
        "session", nargs="?", default="", metavar="SESSION",
        help="the name in `monarch ps` (or its first letters), or the name of a kept session; "
        "default: the only session",
    )  # fmt: skip
    debug.add_argument(
        "-c", "--command", dest="lines", action="append", metavar="COMMAND",
        help="run this command and exit instead of prompting (may be repeated)",
    )  # fmt: skip
    debug.add_argument(
        "--dap", metavar="NAME[dim=0:4]",
        help="serve these ranks of a mesh of processes to an editor: speak the Debug Adapter "
        "Protocol on standard input and output",
    )  # fmt: skip
    debug.add_argument(
        "--port", type=int, metavar="PORT",
        help="with --dap: serve the first editor that connects to this loopback port instead",
    )  # fmt: skip
    add_where(debug)


def _debug(arguments: argparse.Namespace) -> int:
    if arguments.dap is not None:
        from monarch._src.cli import dap

        return dap.run(arguments.bases, arguments.session, arguments.dap, arguments.port)
    from monarch._src.cli import debug

    return debug.run(arguments.bases, arguments.session, arguments.lines)
