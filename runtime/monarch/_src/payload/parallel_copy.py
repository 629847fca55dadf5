"""Copies of much memory, which several threads make together.

Runs in: any process, on the thread that needs the copy, and on others until it is made. Each copies
a stretch without the interpreter's lock; of fresh memory most of the time goes into having it.
"""

from __future__ import annotations

import ctypes
import os
import threading

SHARED = 1 << 27  # from here on others help: 256 MiB take two threads half as long
_MOST = 4


def copy(to: int, source: int, size: int, keep: object) -> None:
    """Copy between those addresses. `keep`: what the memory of both goes with."""
    count = 1 if size < SHARED else min(_MOST, os.cpu_count() or 1)
    each = -(-size // count)

    # A helper has `keep` too: the memory stays even if who waits for it is interrupted.
    def part(at: int, _keep: object) -> None:
        ctypes.memmove(to + at, source + at, min(each, size - at))

    helpers: list[threading.Thread] = []
    for at in range(each, size, each):
        helper = threading.Thread(target=part, args=(at, keep), name="monarch-copy", daemon=True)
        try:
            helper.start()
        except RuntimeError:  # there is no room for a thread, or the interpreter ends
            part(at, keep)
        else:
            helpers.append(helper)
    part(0, keep)
    for helper in helpers:
        helper.join()
