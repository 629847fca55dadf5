"""`monarch profile`: a trace of the sessions of this machine, for Perfetto."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from monarch._src.cli.query import chosen
from monarch._src.errors import QueryError
from monarch._src.session.directories import AGENT_LIVES, find_sessions
from monarch._src.telemetry.perfetto.profile import profile_sessions


def run(
    bases: Sequence[str] | None,
    timeout_s: float | None,
    which: str,
    for_s: float,
    output: str,
    torch: bool,
) -> int:
    """Write the trace; return 1 if no session answered or rows are missing."""
    live = [one for one in find_sessions(bases) if one.state in AGENT_LIVES]

    def wait() -> None:
        try:
            time.sleep(for_s)  # the length of the trace, as the user gave it
        except KeyboardInterrupt:
            print("monarch profile: ended early", file=sys.stderr)

    try:
        asked = [(one.name, one.directory) for one in chosen(live, which)]
        if not asked:
            raise QueryError("there is no running session here (see `monarch ps`)")
        trace, summary, missing = profile_sessions(asked, wait, for_s, timeout_s, torch)
        Path(output).write_bytes(trace)
    except (QueryError, OSError) as error:
        print(f"monarch profile: {error}", file=sys.stderr)
        return 1
    print(summary)
    print(f"wrote {output} ({len(trace):,} bytes); open it at https://ui.perfetto.dev")
    for one in missing:
        print(f"monarch profile: missing rows of {one}", file=sys.stderr)
    return 1 if missing else 0
