"""`monarch tui`: hosts, procs and actors in the terminal; with `--diagnose`, as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from monarch._src.admin.cluster_reader import ClusterReader, NoSessionError, find_live
from monarch._src.admin.http_client import AdminAPIError, AdminClient
from monarch._src.admin.local_source import LocalSource
from monarch._src.admin.server_files import ServerRecord

if TYPE_CHECKING:
    from monarch._src.admin.remote_hosts import RemoteHosts

INSTALL = "pip install 'monarch-jupyter[tui]'"


def run(
    bases: Sequence[str] | None,
    names: Sequence[str],
    address: str,
    token_file: str | None,
    refresh_s: float,
    *,
    remote: Callable[[], RemoteHosts | None],
    diagnose: bool,
    stacks: bool,
) -> int:
    """Show the view until it is left; return 1 if there is nothing to show."""
    try:
        source = _source(bases, names, address, token_file, remote)
        if diagnose:
            print(_diagnosis(source, stacks=stacks))
            return 0
        source.cluster()  # an address that is wrong is an error here, not inside of the view
    except (NoSessionError, AdminAPIError, OSError, ValueError) as error:
        print(f"monarch tui: {error}", file=sys.stderr)
        return 1
    try:
        from monarch._src.admin.terminal_view import TerminalView
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("textual", "rich"):
            raise
        print(
            f"monarch tui: the view needs {error.name}, which is not installed; {INSTALL} (or use "
            "--diagnose, which needs nothing)",
            file=sys.stderr,
        )
        return 1
    TerminalView(source, refresh_s).run()
    return 0


def _source(
    bases: Sequence[str] | None,
    names: Sequence[str],
    address: str,
    token_file: str | None,
    remote: Callable[[], RemoteHosts | None],
) -> AdminClient | LocalSource:
    if not address:
        find_live(bases, names)  # for its error
        return LocalSource(ClusterReader(lambda: find_live(bases, names), remote=remote()))
    token = ""
    if token_file is not None:
        record = msgspec.json.decode(Path(token_file).read_bytes(), type=ServerRecord)
        token = record.observer_token
    return AdminClient(address, token)


def _diagnosis(source: AdminClient | LocalSource, *, stacks: bool) -> str:
    """The contents of the view as JSON: the failed nodes, and the case file."""
    cluster = source.cluster()
    failed = [
        {"identity": node.identity, "failure": node.failure}
        for node in cluster.nodes.values()
        if node.failure is not None
    ]
    data = {
        "snapshot": cluster.number,
        "as_of": cluster.as_of,
        "root": cluster.nodes["root"].properties,
        "failed": failed,
        "missing": cluster.missing,
        "case": source.case(stacks=stacks),
    }
    return msgspec.json.format(msgspec.json.encode(data)).decode()
