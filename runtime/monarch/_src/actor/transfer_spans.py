"""Transfers of data as spans in the history of this process.

Runs in: any process, on the thread that waits for the transfer.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic_ns

from monarch._src.actor.attribution import current_attribution
from monarch._src.actor.state.history import HISTORY

TRACK = "transfers"
"""The name under which the history of a process has them."""


@contextmanager
def transfer_span(name: str) -> Generator[None]:
    """Remember the block as a transfer, if this process keeps history."""
    if HISTORY.spans is None:
        yield
        return
    place, begun_ns, failed = current_attribution(), monotonic_ns(), True
    try:
        yield
        failed = False
    finally:
        HISTORY.add_span(name, place, begun_ns, monotonic_ns(), TRACK, failed=failed)
