"""Options and time-outs that several subcommands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[Any]"  # pyright: ignore[reportPrivateUsage]

WAIT_S = 15.0
ANSWER_S = 2.0
STACKS_S = 30.0


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str | None = None,
    aliases: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """Add a subcommand that calls `run`.

    `help` is its line in the list of commands; `description` heads its own help.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help, description=description, aliases=aliases
    )
    parser.set_defaults(run=run)
    return parser


def add_group(commands: Commands, name: str, *, help: str, description: str) -> Commands:
    """Add a subcommand that takes subcommands of its own; return where to add them."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=description)
    parser.set_defaults(run=partial(_print_help, parser))
    return parser.add_subparsers(dest=name, metavar="COMMAND", title="commands")


def add_where(parser: argparse.ArgumentParser) -> None:
    """Add `--in`: where to look for sessions."""
    parser.add_argument(
        "--in", dest="bases", action="append", metavar="DIRECTORY",
        help="look for sessions in this directory only (may be repeated)",
    )  # fmt: skip


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add a positional: a session, a mesh or a slice; see `cli.selection`."""
    parser.add_argument(
        "which", nargs="?", default="", metavar="SESSION or MESH[slice]",
        help="a session as `monarch ps` shows it, or a mesh of any session, such as 'workers' or "
        "'workers[gpus=0:4]'; default: all sessions",
    )  # fmt: skip


def add_session(parser: argparse.ArgumentParser) -> None:
    """Add `--session`: which session of this machine."""
    parser.add_argument(
        "--session", default="", metavar="SESSION",
        help="this session only: its name in `monarch ps`, or its first letters",
    )  # fmt: skip


def add_duration(
    parser: argparse.ArgumentParser, name: str, default: float | None, help: str
) -> None:
    """Add a duration: seconds, or text with units."""
    usual = "" if default is None else f" (default: {default:g}s)"
    parser.add_argument(
        name, type=_duration, default=default, metavar="DURATION",
        help=f"{help}, as 10, 10s or 1m30s{usual}",
    )  # fmt: skip


def _duration(text: str) -> float:
    from monarch._src.config import seconds  # loads msgspec, which most commands do not need

    try:
        return seconds("duration", text)
    except TypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration, such as 10s") from None


def add_timeout(parser: argparse.ArgumentParser, default: float | None, help: str) -> None:
    """Add `--timeout`, in seconds. Without a default, `help` says what happens."""
    usual = "" if default is None else " (default: %(default)g)"
    parser.add_argument(
        "--timeout", type=_seconds, default=default, metavar="SECONDS", help=f"{help}{usual}"
    )


def add_identity(parser: argparse.ArgumentParser, key_help: str) -> None:
    """Add `--keys` and `--key`: the keys by which other hosts recognize this one."""
    parser.add_argument(
        "--keys", metavar="DIRECTORY",
        help="the keys of the job (see `monarch keys make`), or trust_all_connections for none, on "
        "loopback only",
    )  # fmt: skip
    parser.add_argument("--key", metavar="FILE", help=key_help)


def _print_help(parser: argparse.ArgumentParser, _arguments: argparse.Namespace) -> int:
    parser.print_help()
    return 0


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 1e6:  # also refuses NaN
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1000000 seconds")
    return seconds
