"""The entry point of the `monarch` command, and its commands about this installation.

A subcommand is imported only when it runs.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Sequence

from monarch._src.cli.options import admin, hosts, sessions
from monarch._src.cli.options.common import Commands, add_command
from monarch._src.version import VERSION


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0, 1 on failure, 2 for wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser, names = parser_and_names()
    first = words[0] if words else ""
    if first == "help":  # `monarch help ps` as `monarch ps --help`
        words = [*words[1:2], "--help"]
        first = words[0]
    if first and not first.startswith("-") and first not in names:
        near = difflib.get_close_matches(first, names, n=1, cutoff=0.6)
        remedy = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        parser.error(f"there is no command {first!r}; {remedy}")
    # The words after `torchrun` are for torch's parser; this one would read some as its own.
    arguments = parser.parse_args(words[:1] if first == "torchrun" else words)
    arguments.words = words[1:]
    run: Callable[[argparse.Namespace], int] | None = arguments.run
    if run is None:
        parser.print_help()
        return 0
    try:
        status = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return status


def parser_and_names() -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser, and the names of the commands."""
    parser = argparse.ArgumentParser(prog="monarch", description="A cluster in your notebook.")
    parser.add_argument(
        "--version", action="version", version=VERSION, help="print the version and exit"
    )
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for add in (sessions.add, admin.add, sessions.add_debug, hosts.add):
        add(commands)
    _add_doctor(commands)
    _add_skill(commands)
    _add_version(commands)
    return parser, list(commands.choices)


def _add_doctor(commands: Commands) -> None:
    add_command(
        commands,
        "doctor",
        _doctor,
        help="check this machine and this installation, with remedies",
        description="Check this machine and this installation. Exits with 1 if there is a problem.",
    )


def _add_skill(commands: Commands) -> None:
    add_command(
        commands,
        "skill",
        _skill,
        help="print a guide for AI agents that look into running programs",
        description="Print SKILL.md: how an AI agent finds out what a program does, why it hangs "
        "and what failed, with commands and SQL.",
    )


def _add_version(commands: Commands) -> None:
    add_command(commands, "version", _version, help="print the version")


def _doctor(_arguments: argparse.Namespace) -> int:
    from monarch._src.cli import doctor

    return doctor.run()


def _skill(_arguments: argparse.Namespace) -> int:
    from monarch._src.admin.skill import skill_text

    sys.stdout.write(skill_text())
    return 0


def _version(_arguments: argparse.Namespace) -> int:
    from monarch._src.version import VERSION

    print(VERSION)
    return 0
