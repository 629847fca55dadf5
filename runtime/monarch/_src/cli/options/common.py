"""What several subcommands share: options, times."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[Any]"  # pyright: ignore[reportPrivateUsage]

WAIT_S = 15.0
ANSWER_S = 2.0
LOOK_S = 30.0


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str | None = None,
) -> argparse.ArgumentParser:
    """A subcommand that does `run`. `help`: in a list of them; `description`: in its own help."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=description)
    parser.set_defaults(run=run)
    return parser


def add_group(commands: Commands, name: str, *, help: str, description: str) -> Commands:
    """A subcommand that needs one of its own behind it: where to add these."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=description)
    parser.set_defaults(run=partial(_print_help, parser))
    return parser.add_subparsers(dest=name, metavar="COMMAND", title="commands")


def add_where(parser: argparse.ArgumentParser) -> None:
    """`--in`: where to look for sessions."""
    parser.add_argument(
        "--in", dest="bases", action="append", metavar="DIRECTORY",
        help="look for session directories only in this one (may be given several times)",
    )  # fmt: skip


def add_timeout(parser: argparse.ArgumentParser, default: float, what: str) -> None:
    """`--timeout`, in seconds."""
    parser.add_argument(
        "--timeout", type=_seconds, default=default, metavar="SECONDS",
        help=f"{what} (default: %(default)g)",
    )  # fmt: skip


def add_identity(parser: argparse.ArgumentParser, own: str) -> None:
    """`--keys` and `--key`: who this host is to others."""
    parser.add_argument(
        "--keys", metavar="DIRECTORY",
        help="the keys of the job (`monarch keys make`); trust_all_connections: none, on loopback",
    )  # fmt: skip
    parser.add_argument("--key", metavar="FILE", help=own)


def _print_help(parser: argparse.ArgumentParser, _arguments: argparse.Namespace) -> int:
    """A command that needs another one behind it."""
    parser.print_help()
    return 0


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 1e6:  # NaN too is refused
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return seconds
