"""Options of the commands about sessions: `ps`, `stacks`, `query`, `attach`, `kill`, `reap`."""

from __future__ import annotations

import argparse

from monarch._src.cli.options.common import (
    ANSWER_S,
    STACKS_S,
    WAIT_S,
    Commands,
    add_command,
    add_identity,
    add_timeout,
    add_where,
)


def add(commands: Commands) -> None:
    """Add the commands."""
    _add_ps(commands)
    _add_stacks(commands)
    _add_query(commands)
    _add_attach(commands)
    _add_kill(commands)
    _add_reap(commands)


def _add_ps(commands: Commands) -> None:
    ps = add_command(
        commands,
        "ps",
        _ps,
        help="list your sessions on this machine: clients, meshes, processes",
        description="List your sessions on this machine, each with its client, its host agent, its "
        "meshes, and the state of their processes. An orphan is a session whose client is gone.",
        aliases=["ls"],
    )
    add_where(ps)
    ps.add_argument(
        "--at", dest="addresses", action="append", metavar="ADDRESS",
        help="show the worker that listens at ADDRESS instead (may be repeated); needs --keys; an "
        "observer's key is enough",
    )  # fmt: skip
    add_identity(ps, "the key file to connect with (default: observer.key)")
    ps.add_argument("--json", action="store_true", help="print JSON")
    add_timeout(ps, ANSWER_S, "seconds to wait for each agent's answer")


def _add_stacks(commands: Commands) -> None:
    stacks = add_command(
        commands,
        "stacks",
        _stacks,
        help="show the stacks of running ranks, to find the one that hangs",
        description="Read the stacks of busy ranks from outside their processes. Ranks with equal "
        "stacks are shown together, and outliers are named. Needs py-spy "
        "(pip install 'monarch-jupyter[stacks]'). Exits with 1 if a stack could not be read.",
    )
    stacks.add_argument(
        "which", nargs="?", default="", metavar="SESSION or MESH[slice]",
        help="a session as `monarch ps` shows it, or a mesh of any session, such as 'workers' or "
        "'workers[gpus=0:4]'; default: all sessions",
    )  # fmt: skip
    add_where(stacks)
    stacks.add_argument(
        "--full", action="store_true", help="show all threads and the frames of the runtime"
    )
    stacks.add_argument(
        "--idle", action="store_true", help="also read ranks that report themselves idle"
    )
    add_timeout(stacks, STACKS_S, "seconds to wait for all stacks")


def _add_query(commands: Commands) -> None:
    query = add_command(
        commands,
        "query",
        _query,
        help="run SQL over the live state of your sessions on this machine",
        description="Run one SELECT over tables of the live state: hosts, procs, meshes, actors, "
        "calls, messages, log_lines, frames and more (see `monarch query 'SHOW TABLES'` and "
        "`'DESCRIBE procs'`). Needs DuckDB (pip install 'monarch-jupyter[sql]'). Exits with 1 if "
        "the query failed, or if rows are missing because a process did not answer.",
    )
    query.add_argument("sql", metavar="SQL", help="the query; - reads it from standard input")
    query.add_argument(
        "--session", default="", metavar="SESSION",
        help="ask this session only: its name in `monarch ps`, or its first letters",
    )  # fmt: skip
    add_where(query)
    query.add_argument("--json", action="store_true", help="print JSON")
    add_timeout(query, None, "seconds to wait for ranks (default: 2, and 30 for the table frames)")


def _add_attach(commands: Commands) -> None:
    attach = add_command(
        commands,
        "attach",
        _attach,
        help="attach to a kept session from a Python prompt or a script",
        description="Attach to a kept session, then run an interactive Python prompt, or SCRIPT, "
        "in which its meshes are variables by their names. Detaches at the end; the session keeps "
        "running.",
    )
    attach.add_argument(
        "name", nargs="?", metavar="NAME",
        help="the name of a session or of one of its meshes; default: the only kept session that "
        "no client is attached to",
    )  # fmt: skip
    attach.add_argument(
        "--take", action="store_true", help="take the session over from the client attached to it"
    )
    attach.add_argument(
        "script", nargs="?", metavar="SCRIPT", help="a script to run instead of the prompt"
    )
    attach.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script"
    )


def _add_kill(commands: Commands) -> None:
    kill = add_command(
        commands,
        "kill",
        _kill,
        help="end sessions: actors clean up, then all their processes end",
        description="End sessions of yours on this machine. Actors clean up, then all processes "
        "end; those that remain after the time-out are killed. The client process keeps running, "
        "and its calls raise SupervisionError. Exits with 1 if a session could not be ended.",
    )
    selection = kill.add_mutually_exclusive_group(required=True)
    selection.add_argument(
        "sessions", nargs="*", default=[], metavar="SESSION",
        help="the name in `monarch ps` (or its first letters), or the name of a kept session",
    )  # fmt: skip
    selection.add_argument("--all", action="store_true", help="end all your sessions")
    selection.add_argument(
        "--orphans", action="store_true", help="end the sessions whose client is gone"
    )
    add_where(kill)
    add_timeout(kill, WAIT_S, "seconds before remaining processes are killed")


def _add_reap(commands: Commands) -> None:
    reap = add_command(
        commands,
        "reap",
        _reap,
        help="remove orphaned sessions, directories and processes",
        description="End sessions that are not kept and whose client is gone, agents and processes "
        "without a session directory, and remove session directories without a host agent. Kept "
        "sessions, and those whose client is alive, are left alone.",
    )
    reap.add_argument("--dry-run", action="store_true", help="only print what would be ended")
    add_where(reap)
    add_timeout(reap, WAIT_S, "seconds before remaining processes are killed")


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


def _query(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import query

    return query.run(
        arguments.bases, arguments.timeout, arguments.sql, arguments.session,
        as_json=arguments.json,
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
