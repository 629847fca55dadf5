"""`monarch reap`: end what nobody owns any more."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from monarch._src.session import reap


def run(bases: Sequence[str] | None, timeout_s: float, *, dry_run: bool) -> int:
    """Say what is found and done; 0 if nothing of it is left, else 1."""
    outcome = reap.reap(bases, timeout_s, dry_run=dry_run)
    for line in outcome.done:
        print(line)
    for complaint in outcome.complaints:
        print(f"monarch reap: {complaint}", file=sys.stderr)
    if not outcome.done and not outcome.complaints:
        print("nothing is left behind")
    return 1 if outcome.complaints else 0
