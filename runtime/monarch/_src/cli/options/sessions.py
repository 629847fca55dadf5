"""Sessions on this machine: who they are, what they do, their end."""

from __future__ import annotations

import argparse

from monarch._src.cli.options.common import (
    ANSWER_S,
    LOOK_S,
    WAIT_S,
    Commands,
    add_command,
    add_identity,
    add_timeout,
    add_where,
)


def add(commands: Commands) -> None:
    """Spell them."""
    _add_ps(commands)
    _add_stacks(commands)
    _add_attach(commands)
    _add_kill(commands)
    _add_reap(commands)


def _add_ps(commands: Commands) -> None:
    ps = add_command(
        commands,
        "ps",
        _ps,
        help="your sessions on this machine: clients, meshes, processes",
        description="List your sessions on this machine: each with its client, its host agent, its "
        "meshes and their processes, and what these do. An orphan is one whose client is gone.",
    )
    add_where(ps)
    ps.add_argument(
        "--at", dest="addresses", action="append", metavar="ADDRESS",
        help="in place of that, what the worker that listens there does (may be given several "
        "times); needs --keys, and no more than an observer's key",
    )  # fmt: skip
    add_identity(ps, "the pair to look with (default: observer.key)")
    ps.add_argument("--json", action="store_true", help="for programs")
    add_timeout(ps, ANSWER_S, "how long an agent may take to answer")


def _add_stacks(commands: Commands) -> None:
    stacks = add_command(
        commands,
        "stacks",
        _stacks,
        help="where ranks are in the program at this moment; finds the one that hangs",
        description="Look into running ranks from outside, as far as they say that they are busy, "
        "and show their stacks, equal ones once and the odd ones named. Needs py-spy "
        "(pip install 'monarch-jupyter[stacks]'). Exit status 1: something could not be read.",
    )
    stacks.add_argument(
        "which", nargs="?", default="", metavar="SESSION or MESH[slice]",
        help="a session as `monarch ps` shows it, or a mesh of any session, such as 'workers' or "
        "'workers[gpus=0:4]'; none: all",
    )  # fmt: skip
    add_where(stacks)
    stacks.add_argument(
        "--full", action="store_true", help="all threads, with the frames of the runtime"
    )
    stacks.add_argument(
        "--idle", action="store_true", help="look into ranks too that say that they are idle"
    )
    add_timeout(stacks, LOOK_S, "for the whole look")


def _add_attach(commands: Commands) -> None:
    attach = add_command(
        commands,
        "attach",
        _attach,
        help="take up a session that is kept: a Python prompt, or a script, with its meshes",
        description="Take up a session that is kept. Its meshes are variables, by the names they "
        "were given, of an interactive Python, or of SCRIPT. At the end the session is let go of "
        "and lives on.",
    )
    attach.add_argument(
        "name", nargs="?", metavar="NAME",
        help="of the session, or of one of its meshes; the only one that nobody holds, if left out",
    )  # fmt: skip
    attach.add_argument(
        "--take", action="store_true", help="take it from a client that holds it and lives"
    )
    attach.add_argument("script", nargs="?", metavar="SCRIPT", help="run this instead of a prompt")
    attach.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="what the script is given"
    )


def _add_kill(commands: Commands) -> None:
    kill = add_command(
        commands,
        "kill",
        _kill,
        help="end sessions: their actors clean up, then every process goes",
        description="End sessions of yours on this machine. Actors clean up, then every process "
        "goes; what is left after the time-out is killed. The client itself is not touched: its "
        "calls raise SupervisionError. Exit status 1: something could not be ended.",
    )
    what = kill.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "sessions", nargs="*", default=[], metavar="SESSION",
        help="as `monarch ps` shows it, of which the beginning is enough, or as it is kept",
    )  # fmt: skip
    what.add_argument("--all", action="store_true", help="every session of yours")
    what.add_argument("--orphans", action="store_true", help="those whose client is gone")
    add_where(kill)
    add_timeout(kill, WAIT_S, "how long they may take to end before they are killed")


def _add_reap(commands: Commands) -> None:
    reap = add_command(
        commands,
        "reap",
        _reap,
        help="end what nobody owns any more: orphaned sessions, directories, processes",
        description="Find sessions whose client is gone and that are not kept, directories without "
        "a host agent, agents and processes without a session directory, and end them. Sessions "
        "that are kept, or whose client lives, are left alone.",
    )
    reap.add_argument("--dry-run", action="store_true", help="only say what would be ended")
    add_where(reap)
    add_timeout(reap, WAIT_S, "how long they may take to end before they are killed")


def _ps(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import ps

    if arguments.addresses:
        return ps.run_at(
            arguments.addresses, arguments.keys, arguments.key, arguments.timeout,
            as_json=arguments.json,
        )  # fmt: skip
    return ps.run(arguments.bases, arguments.timeout, as_json=arguments.json)


def _stacks(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import stacks

    return stacks.run(
        arguments.bases, arguments.timeout, arguments.which, full=arguments.full,
        idle=arguments.idle,
    )  # fmt: skip


def _attach(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import attach

    return attach.run(arguments.name, arguments.script, arguments.arguments, take=arguments.take)


def _kill(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import kill

    return kill.run(
        arguments.bases, arguments.timeout, arguments.sessions,
        every=arguments.all, orphans=arguments.orphans,
    )  # fmt: skip


def _reap(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import reap

    return reap.run(arguments.bases, arguments.timeout, dry_run=arguments.dry_run)
