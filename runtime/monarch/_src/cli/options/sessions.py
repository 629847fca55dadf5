"""Options of the commands about sessions, such as `ps`, `query`, `debug` and `kill`."""

from __future__ import annotations

import argparse

from monarch._src.cli.options.common import (
    ANSWER_S,
    STACKS_S,
    WAIT_S,
    Commands,
    add_command,
    add_duration,
    add_identity,
    add_selection,
    add_session,
    add_timeout,
    add_where,
)


def add(commands: Commands) -> None:
    """Add the commands."""
    _add_ps(commands)
    _add_stacks(commands)
    _add_flame(commands)
    _add_logs(commands)
    _add_query(commands)
    _add_profile(commands)
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
    add_selection(stacks)
    add_where(stacks)
    stacks.add_argument(
        "--full", action="store_true", help="show all threads and the frames of the runtime"
    )
    stacks.add_argument(
        "--idle", action="store_true", help="also read ranks that report themselves idle"
    )
    add_timeout(stacks, STACKS_S, "seconds to wait for all stacks")


def _add_flame(commands: Commands) -> None:
    flame = add_command(
        commands,
        "flame",
        _flame,
        help="sample the stacks of ranks for a time: a flame graph of where they spend it",
        description="Sample the stacks of ranks from outside their processes, for a time, and "
        "print the functions with the most samples. Functions in which few ranks spend their time "
        "name these ranks. Needs py-spy (pip install 'monarch-jupyter[stacks]'). Exits with 1 if a "
        "session could not be sampled.",
    )
    add_selection(flame)
    add_duration(flame, "--time", 5.0, "how long to sample")
    flame.add_argument(
        "-o", "--output", default="", metavar="FILE",
        help="write the graph: a picture if FILE ends in .svg, else a line for each stack, as "
        "speedscope.app and flamegraph.pl read them",
    )  # fmt: skip
    flame.add_argument(
        "--rate", type=_whole, default=100, metavar="N",
        help="samples of each rank in a second (default: %(default)s)",
    )  # fmt: skip
    flame.add_argument(
        "--threads", action="store_true",
        help="sample all threads of the user's code, not only those that run actors",
    )  # fmt: skip
    flame.add_argument(
        "--native", action="store_true", help="include functions of C and C++ libraries"
    )
    flame.add_argument(
        "--nonblocking", action="store_true",
        help="do not pause ranks; a stack may then be read while it changes",
    )  # fmt: skip
    add_where(flame)


def _add_logs(commands: Commands) -> None:
    logs = add_command(
        commands,
        "logs",
        _logs,
        help="show the last lines that ranks have written; -f shows further ones as they come",
        description="Show the last lines that the ranks of your sessions on this machine have "
        "written, each with its rank. Host agents keep a bounded number of lines. Exits with 1 if "
        "a host agent did not answer.",
    )
    add_selection(logs)
    add_where(logs)
    logs.add_argument(
        "-n", "--tail", type=_whole, default=100, metavar="N",
        help="show the last N lines of all (default: %(default)s)",
    )  # fmt: skip
    logs.add_argument(
        "-f", "--follow", action="store_true",
        help="go on until the sessions have ended, or Ctrl-C",
    )  # fmt: skip
    logs.add_argument("--grep", metavar="TEXT", help="only lines that match a regular expression")
    logs.add_argument("--json", action="store_true", help="print a JSON object for each line")
    add_timeout(logs, ANSWER_S, "seconds to wait for each agent's answer")


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 up")
    return int(text)


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
        aliases=["sql"],
    )
    query.add_argument(
        "sql", metavar="SQL", nargs="?", default="",
        help="the query; - reads it from standard input",
    )  # fmt: skip
    files = query.add_mutually_exclusive_group()
    files.add_argument(
        "--from", dest="recording", metavar="FILE",
        help="ask a recording in place of running sessions",
    )  # fmt: skip
    files.add_argument(
        "--record", dest="record", metavar="FILE",
        help="record all tables into this new file, until Ctrl-C or for --time; needs no SQL",
    )  # fmt: skip
    query.add_argument(
        "--at", type=float, metavar="SECONDS",
        help="with --from: the tables as they were that many seconds after the first sample",
    )  # fmt: skip
    add_duration(query, "--time", None, "with --record: how long to record")
    add_duration(query, "--interval", 2.0, "with --record: the time between two samples")
    add_session(query)
    add_where(query)
    forms = query.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print JSON")
    forms.add_argument("--csv", action="store_true", help="print CSV, with the names of columns")
    add_timeout(
        query, None,
        "seconds for the query (default: 2 for ranks, 30 for the table frames, and as long as the "
        "engine takes)",
    )  # fmt: skip


def _add_profile(commands: Commands) -> None:
    profile = add_command(
        commands,
        "profile",
        _profile,
        help="record a trace of your sessions on this machine, for ui.perfetto.dev",
        description="Record for a time what the processes of your sessions do: calls, queues and "
        "endpoints, spans, log records. Open the file at https://ui.perfetto.dev. Ctrl-C ends it "
        "earlier. Exits with 1 if no session answers, or if rows are missing.",
    )
    add_duration(profile, "--time", 10.0, "how long to record")
    profile.add_argument(
        "-o", "--output", default="monarch.perfetto", metavar="FILE",
        help="the file to write (default: %(default)s)",
    )  # fmt: skip
    profile.add_argument(
        "--torch", action="store_true",
        help="also what torch's profiler sees in processes that have imported torch",
    )  # fmt: skip
    add_session(profile)
    add_where(profile)
    add_timeout(profile, None, "seconds to wait for ranks (default: 2)")


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
        help="end sessions, or the job of a context: actors clean up, then processes end",
        description="End sessions of yours on this machine. Actors clean up, then all processes "
        "end; those that remain after the time-out are killed. The client process keeps running, "
        "and its calls raise SupervisionError. The name of a context, and no name at all, end the "
        "job of that or of the current context. Exits with 1 if something could not be ended.",
    )
    selection = kill.add_mutually_exclusive_group()
    selection.add_argument(
        "sessions", nargs="*", default=[], metavar="SESSION",
        help="the name in `monarch ps` (or its first letters), the name of a kept session, or of a "
        "context; default: the current context",
    )  # fmt: skip
    selection.add_argument("--context", metavar="NAME", help="end the job of this context")
    selection.add_argument("--all", action="store_true", help="end all your sessions")
    selection.add_argument(
        "--orphans", action="store_true", help="end the sessions whose client is gone"
    )
    add_where(kill)
    add_timeout(kill, WAIT_S, "seconds before remaining processes are killed")
    kill.set_defaults(refuse=kill.error)


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


def _flame(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import flame

    wanted = flame.Wanted(
        arguments.which, arguments.time, arguments.rate, arguments.output, arguments.threads,
        arguments.native, arguments.nonblocking,
    )  # fmt: skip
    return flame.run(arguments.bases, wanted)


def _logs(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import logs

    wanted = logs.Wanted(arguments.which, arguments.tail, arguments.grep)
    return logs.run(
        arguments.bases, arguments.timeout, wanted, follow=arguments.follow,
        as_json=arguments.json,
    )  # fmt: skip


def _query(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import query

    if arguments.record and not arguments.sql:
        return query.record(
            arguments.bases, arguments.timeout, arguments.session, arguments.record,
            arguments.interval, arguments.time,
        )  # fmt: skip
    if arguments.record:
        return query.refuse("--record takes no query; ask the file afterwards, with --from FILE")
    return query.run(
        arguments.bases, arguments.timeout, arguments.sql, arguments.session,
        arguments.recording, arguments.at, as_json=arguments.json, as_csv=arguments.csv,
    )  # fmt: skip


def _profile(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import profile

    return profile.run(
        arguments.bases, arguments.timeout, arguments.session, arguments.time, arguments.output,
        arguments.torch,
    )  # fmt: skip


def _attach(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import attach

    return attach.run(arguments.name, arguments.script, arguments.arguments, take=arguments.take)


def _kill(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import kill

    if not (arguments.sessions or arguments.all or arguments.orphans):
        from monarch._src.cli import context

        if arguments.context is None and not context.current_has_record():
            arguments.refuse(
                "one of the arguments SESSION --all --orphans is required: no job is current in "
                "this directory"
            )
        return context.run_kill(arguments.context)
    return kill.run(
        arguments.bases, arguments.timeout, arguments.sessions,
        every=arguments.all, orphans=arguments.orphans,
    )  # fmt: skip


def _reap(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import reap

    return reap.run(arguments.bases, arguments.timeout, dry_run=arguments.dry_run)


def add_debug(commands: Commands) -> None:
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
