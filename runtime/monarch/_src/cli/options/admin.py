"""Options of the commands that show the state of sessions: `admin`, `explain`, `mcp`, `tui`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch._src.cli.options.common import (
    Commands,
    add_command,
    add_identity,
    add_timeout,
    add_where,
)

if TYPE_CHECKING:
    from monarch._src.admin.remote_hosts import RemoteHosts


def add(commands: Commands) -> None:
    """Add the commands."""
    _add_admin(commands)
    _add_dashboard(commands)
    _add_explain(commands)
    _add_mcp(commands)
    _add_tui(commands)


def _add_admin(commands: Commands) -> None:
    admin = add_command(
        commands,
        "admin",
        _admin,
        help="serve the state of your sessions over HTTP, with /metrics for Prometheus",
        description="Serve the live state of your sessions on this machine: nodes, stacks, SQL, "
        "figures in the OpenMetrics format, the case file of a hang, and actions of owners. "
        "Listens at a Unix socket in the directory of the session unless --listen is given; TCP "
        "needs a token. Ends with its session. Needs Starlette and uvicorn "
        "(pip install 'monarch-jupyter[admin]').",
    )
    _add_sessions(admin)
    _add_remote(admin)
    admin.add_argument(
        "--listen", default="", metavar="ADDRESS",
        help="HOST:PORT (port 0: a free one) or unix:PATH; beyond loopback with TLS only",
    )  # fmt: skip
    admin.add_argument(
        "--token-file", metavar="FILE",
        help="write the address and the tokens to this file (mode 0600) instead of printing them",
    )  # fmt: skip
    admin.add_argument(
        "--workers", action="store_true",
        help="with --session: also show the worker hosts of yours on this machine",
    )  # fmt: skip
    admin.add_argument("--tls-cert", default="", metavar="FILE", help="the certificate, PEM")
    admin.add_argument("--tls-key", default="", metavar="FILE", help="its private key, PEM")
    admin.add_argument(
        "--audit", metavar="FILE",
        help="the log of owners' actions (default: monarch/admin-actions.jsonl in the state "
        "directory of the user)",
    )  # fmt: skip
    add_where(admin)
    said = admin.add_mutually_exclusive_group()
    said.add_argument("--json", action="store_true", help="print the address as JSON")
    said.add_argument("--quiet", action="store_true", help="print the address and no token")


def _add_dashboard(commands: Commands) -> None:
    dashboard = add_command(
        commands,
        "dashboard",
        _dashboard,
        help="open a web page with the explorer, lines, SQL and the case file of your sessions",
        description="Serve a web page with the views of the notebook: ranks by state, timelines, "
        "lines, SQL, the case file of a hang; over your live sessions on this machine, or over a "
        "recording of `monarch query --record`, with a slider through its time. Prints the address "
        "with a token that reads. Needs Starlette and uvicorn "
        "(pip install 'monarch-jupyter[admin]').",
    )
    dashboard.add_argument(
        "recording", nargs="?", metavar="FILE", help="show this recording (default: live sessions)"
    )
    _add_sessions(dashboard)
    _add_remote(dashboard)
    dashboard.add_argument(
        "--listen", default="127.0.0.1:0", metavar="ADDRESS",
        help="HOST:PORT on this machine, or unix:PATH (default: a free port of 127.0.0.1)",
    )  # fmt: skip
    dashboard.add_argument(
        "--owner",
        action="store_true",
        help="print the address of the owner, who may debug and kill ranks",
    )  # fmt: skip
    dashboard.add_argument(
        "--open", action="store_true", help="also open the page in the browser of this machine"
    )
    add_where(dashboard)


def _add_explain(commands: Commands) -> None:
    explain = add_command(
        commands,
        "explain",
        _explain,
        help="name the first failure, or which proc waits for which",
        description="Print the case file of a fault or hang: the first failure, open calls, which "
        "proc waits for which, cycles, stacks that differ from the others, last lines, and queries "
        "that show more. Exits with 1 if something is missing because a process did not answer.",
    )
    _add_sessions(explain)
    add_where(explain)
    explain.add_argument("--no-stacks", action="store_true", help="leave out stacks (py-spy)")
    explain.add_argument("--json", action="store_true", help="print JSON, for programs")
    add_timeout(explain, None, "seconds to wait for ranks (default: 2, and 30 for stacks)")


def _add_mcp(commands: Commands) -> None:
    mcp = add_command(
        commands,
        "mcp",
        _mcp,
        help="give an AI agent tools that look into your sessions (Model Context Protocol)",
        description="Serve tools to an AI agent over standard input and output, by the Model "
        "Context Protocol: list sessions, explain a hang, read stacks and lines, run SQL, sample. "
        "Its program starts this command. The tools only read; --owner adds those that "
        "kill. Needs the package mcp (pip install 'monarch-jupyter[mcp]').",
    )
    _add_sessions(mcp)
    mcp.add_argument(
        "--owner", action="store_true", help="also offer tools that kill ranks and end sessions"
    )
    mcp.add_argument(
        "--audit", metavar="FILE",
        help="with --owner: the log of its actions (default: "
        "monarch/admin-actions.jsonl in the state directory of the user)",
    )  # fmt: skip
    add_where(mcp)


def _add_tui(commands: Commands) -> None:
    tui = add_command(
        commands,
        "tui",
        _tui,
        help="show hosts, procs and actors in the terminal, live",
        description="Show hosts, procs and actors as a tree that follows the cluster, those that "
        "have failed first. Keys: j and k or the arrows move, g and G go to the ends, Tab expands, "
        "c collapses, s and h show actors of the runtime and stopped actors, p reads stacks, d "
        "diagnoses, / searches, Escape goes back, q quits. Needs Textual "
        "(pip install 'monarch-jupyter[tui]').",
    )
    _add_sessions(tui)
    _add_remote(tui)
    tui.add_argument(
        "--addr", default="", metavar="ADDRESS",
        help="read from the admin server there, HOST:PORT or its URL, instead of from the sessions "
        "of this machine",
    )  # fmt: skip
    tui.add_argument(
        "--token-file", metavar="FILE",
        help="with --addr: the file that `monarch admin --token-file` has written",
    )  # fmt: skip
    tui.add_argument(
        "--refresh-ms", type=int, default=2000, metavar="MS",
        help="milliseconds between snapshots (default: %(default)s)",
    )  # fmt: skip
    tui.add_argument("--diagnose", action="store_true", help="print JSON instead, and exit")
    tui.add_argument(
        "--no-stacks", action="store_true", help="with --diagnose: leave out stacks (py-spy)"
    )
    add_where(tui)


def _add_sessions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--session", dest="sessions", action="append", default=[], metavar="SESSION",
        help="this session only: its name in `monarch ps`, or its first letters (may be repeated); "
        "default: all your sessions on this machine",
    )  # fmt: skip


def _add_remote(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--at", dest="addresses", action="append", default=[], metavar="ADDRESS",
        help="also show the state of the worker that listens at ADDRESS (may be repeated); needs "
        "--keys; an observer's key is enough",
    )  # fmt: skip
    add_identity(parser, "the key file to connect with (default: observer.key)")


def _remote(arguments: argparse.Namespace) -> Callable[[], RemoteHosts | None]:
    def load() -> RemoteHosts | None:
        if not arguments.addresses:
            return None
        from monarch._src.admin.remote_hosts import RemoteHosts  # it loads ZeroMQ

        return RemoteHosts.load(arguments.addresses, arguments.keys, arguments.key)

    return load


def _admin(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import admin

    form = "json" if arguments.json else "quiet" if arguments.quiet else "text"
    return admin.run(
        arguments.bases, arguments.sessions, arguments.listen, audit=arguments.audit,
        token_file=arguments.token_file, certificate=arguments.tls_cert, key=arguments.tls_key,
        workers=arguments.workers, remote=_remote(arguments), form=form,
    )  # fmt: skip


def _dashboard(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import dashboard

    return dashboard.run(
        arguments.bases, arguments.sessions, arguments.recording, arguments.listen,
        owner=arguments.owner, open_page=arguments.open, remote=_remote(arguments),
    )  # fmt: skip


def _explain(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import explain

    return explain.run(
        arguments.bases, arguments.timeout, arguments.sessions, stacks=not arguments.no_stacks,
        as_json=arguments.json,
    )  # fmt: skip


def _mcp(arguments: argparse.Namespace) -> int:
    from monarch._src.cli.mcp import command

    return command.run(
        arguments.bases, arguments.sessions, owner=arguments.owner, audit=arguments.audit
    )


def _tui(arguments: argparse.Namespace) -> int:
    from monarch._src.cli import tui

    return tui.run(
        arguments.bases, arguments.sessions, arguments.addr, arguments.token_file,
        max(100, arguments.refresh_ms) / 1000, remote=_remote(arguments),
        diagnose=arguments.diagnose, stacks=not arguments.no_stacks,
    )  # fmt: skip
