"""Copies of large memory areas, made by several threads together.

Runs in: any process, on the calling thread and on helpers that end with the copy. Each copies a
stretch without holding the GIL; for fresh memory, most of the time goes into page faults.
"""

from __future__ import annotations

import ctypes
import os
import threading

SHARED = 1 << 27  # from this size on helpers pay: two threads copy 256 MiB in half the time
_MOST = 4


def copy(to: int, source: int, size: int, keep: object) -> None:
    """Copy between two addresses. `keep`: an object that keeps both memory areas alive."""
    count = 1 if size < SHARED else min(_MOST, os.cpu_count() or 1)
    each = -(-size // count)

    # A helper refers to `keep` too: the memory stays even if the caller is interrupted.
    def part(at: int, _keep: object) -> None:
        ctypes.memmove(to + at, source + at, min(each, size - at))

    helpers: list[threading.Thread] = []
    for at in range(each, size, each):
        helper = threading.Thread(target=part, args=(at, keep), name="monarch-copy", daemon=True)
        try:
            helper.start()
        except RuntimeError:  # no thread can be started, or the interpreter is shutting down
            part(at, keep)
        else:
            helpers.append(helper)
    part(0, keep)
    for helper in helpers:
        helper.join()
