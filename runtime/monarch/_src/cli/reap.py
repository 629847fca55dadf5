"""`monarch reap`: end orphaned sessions and processes, and remove their directories."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from monarch._src.session import reap


def run(bases: Sequence[str] | None, timeout_s: float, *, dry_run: bool) -> int:
    """Reap and print each action; return 1 if something could not be removed, otherwise 0."""
    outcome = reap.reap(bases, timeout_s, dry_run=dry_run)
    for line in outcome.done:
        print(line)
    for complaint in outcome.complaints:
        print(f"monarch reap: {complaint}", file=sys.stderr)
    if not outcome.done and not outcome.complaints:
        print("nothing to reap")
    return 1 if outcome.complaints else 0
