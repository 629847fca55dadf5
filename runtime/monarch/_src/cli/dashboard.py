"""`monarch dashboard`: the web page over live sessions, or over a recording."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monarch._src.admin.cluster_reader import ClusterReader, NoSessionError, find_live
from monarch._src.admin.dashboard.page_files import has_page
from monarch._src.admin.server_files import ServerRecord, dashboard_url
from monarch._src.cli.admin import SessionFinder, missing_package
from monarch._src.errors import QueryError

if TYPE_CHECKING:
    from monarch._src.admin.remote_hosts import RemoteHosts


def run(
    bases: Sequence[str] | None,
    names: Sequence[str],
    recording: str | None,
    listen: str,
    *,
    owner: bool,
    open_page: bool,
    remote: Callable[[], RemoteHosts | None],
) -> int:
    """Serve the page until a signal; return 1 if the server cannot start.

    `recording`: a file that `monarch query --record` has made, in place of live sessions. `owner`:
    the printed address also allows actions.
    """
    try:
        from monarch._src.admin.server import AdminServerError, ServerOptions, serve
    except ModuleNotFoundError as error:
        return missing_package("dashboard", error)
    if not has_page():
        print("monarch dashboard: monarch_jupyter, which has the page, is missing", file=sys.stderr)
        return 1

    def announce(record: ServerRecord) -> None:
        url = dashboard_url(record, owner=owner)
        if url is None:
            print(f"the dashboard listens on {record.url}; a browser cannot open a Unix socket:")
            print(f"ssh -L 8265:{record.socket} HOST, then http://127.0.0.1:8265/dashboard/")
        else:
            print(url)
            if open_page:
                webbrowser.open(url)
        sys.stdout.flush()

    try:
        if recording is None:
            chosen = find_live(bases, names)
            finder = SessionFinder(bases, chosen if names else None, workers=True)
            reader = ClusterReader(finder, remote=remote())
        else:
            from monarch._src.admin.recorded_reader import RecordedReader  # it loads DuckDB

            reader = RecordedReader(Path(recording))
        serve(reader, ServerOptions(listen), announce)
    except (NoSessionError, AdminServerError, QueryError, ValueError, OSError) as error:
        print(f"monarch dashboard: {error}", file=sys.stderr)
        return 1
    return 0
