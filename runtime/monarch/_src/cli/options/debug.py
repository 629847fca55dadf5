"""Breakpoints, from a terminal and from editors."""

from __future__ import annotations

import argparse

from monarch._src.cli.options.common import Commands, add_command, add_where


def add(commands: Commands) -> None:
    """Spell them."""
    debug = add_command(
        commands,
        "debug",
        _debug,
        help="what waits at breakpoints, and consoles for it",
        description="List what waits at breakpoints in a session of yours, talk to one rank or to "
        "many, let them go on. Reads commands from a terminal or a pipe; `help` lists them.",
    )
    debug.add_argument(
        "session", nargs="?", default="", metavar="SESSION",
        help="as `monarch ps` shows it, of which the beginning is enough, or as it is kept; the "
        "only one there is, if left out",
    )  # fmt: skip
    debug.add_argument(
        "-c", "--command", dest="lines", action="append", metavar="COMMAND",
        help="do this and end, in place of asking (may be given several times)",
    )  # fmt: skip
    debug.add_argument(
        "--dap", metavar="NAME[dim=0:4]",
        help="speak the Debug Adapter Protocol of editors on standard input and output, with these "
        "ranks of a mesh of processes",
    )  # fmt: skip
    debug.add_argument(
        "--port", type=int, metavar="PORT",
        help="with --dap: to the first who connects to this port of the loopback interface",
    )  # fmt: skip
    add_where(debug)


def _debug(arguments: argparse.Namespace) -> int:
    if arguments.dap is not None:
        from monarch._src.cli import dap

        return dap.run(arguments.bases, arguments.session, arguments.dap, arguments.port)
    from monarch._src.cli import debug

    return debug.run(arguments.bases, arguments.session, arguments.lines)
