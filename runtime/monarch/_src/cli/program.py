"""Which subcommands there are, and what each is given. Imports none of them before it runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

WAIT_S = 15.0
ANSWER_S = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0, 1 if something is wrong, 2 for bad usage."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] | None = arguments.run
    if run is None:
        parser.print_help()
        return 0
    try:
        status = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="monarch", description="A cluster in your notebook.")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    doctor = commands.add_parser(
        "doctor",
        help="what this machine has and lacks, and what to do about it",
        description="Look at this machine and this installation. Exit status 1: a problem.",
    )
    doctor.set_defaults(run=_doctor)
    ps = commands.add_parser(
        "ps",
        help="your sessions on this machine: clients, meshes, processes",
        description="List your sessions on this machine: each with its client, its host agent, its "
        "meshes and their processes, and what these do. An orphan is one whose client is gone.",
    )
    _add_where(ps)
    ps.add_argument("--json", action="store_true", help="for programs")
    ps.add_argument(
        "--timeout", type=_seconds, default=ANSWER_S, metavar="SECONDS",
        help="how long an agent may take to answer (default: %(default)g)",
    )  # fmt: skip
    ps.set_defaults(run=_ps)
    kill = commands.add_parser(
        "kill",
        help="end sessions: their actors clean up, then every process goes",
        description="End sessions of yours on this machine. Actors clean up, then every process "
        "goes; what is left after the time-out is killed. The client itself is not touched: its "
        "calls raise SupervisionError. Exit status 1: something could not be ended.",
    )
    what = kill.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "sessions", nargs="*", default=[], metavar="SESSION",
        help="as `monarch ps` shows it; the beginning is enough",
    )  # fmt: skip
    what.add_argument("--all", action="store_true", help="every session of yours")
    what.add_argument("--orphans", action="store_true", help="those whose client is gone")
    _add_where(kill)
    kill.add_argument(
        "--timeout", type=_seconds, default=WAIT_S, metavar="SECONDS",
        help="how long they may take to end before they are killed (default: %(default)g)",
    )  # fmt: skip
    kill.set_defaults(run=_kill)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_version)
    return parser


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--in", dest="bases", action="append", metavar="DIRECTORY",
        help="look for session directories only in this one (may be given several times)",
    )  # fmt: skip


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 1e6:  # NaN too is refused
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return seconds


def _doctor(_arguments: argparse.Namespace) -> int:
    from monarch._src.cli import doctor

    return doctor.run()


def _ps(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import ps

    return ps.run(arguments.bases, arguments.timeout, as_json=arguments.json)


def _kill(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import kill

    return kill.run(
        arguments.bases, arguments.timeout, arguments.sessions,
        every=arguments.all, orphans=arguments.orphans,
    )  # fmt: skip


def _version(_arguments: argparse.Namespace) -> int:
    from monarch._src.version import VERSION

    print(VERSION)
    return 0
