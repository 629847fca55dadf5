"""Memory for copies and for what comes, made so that nobody waits longer than he must. No I/O."""

from __future__ import annotations

import mmap

CHEAP = 1 << 13
"""To copy fewer bytes than these is cheaper than to avoid the copy by a view or a second write."""
LARGE = 1 << 24
STEP = 1 << 22
BYTES_AT_ONCE = 1 << 20


def copied(memory: memoryview) -> bytearray | memoryview:
    """A copy of flat memory, which can be written to.

    A large one is made in steps, between which other threads run, and in large pages where there
    are such. What `bytearray` takes from the system for it comes in small ones: 64 MiB 24 ms, and
    5 ms here.
    """
    size = memory.nbytes
    if size < LARGE:
        return bytearray(memory)
    pages = _pages(size)
    for at in range(0, size, STEP):
        pages[at : at + STEP] = memory[at : at + STEP]
    return memoryview(pages)


def room(size: int) -> memoryview:
    """Memory of that size, to be written to; what is in it is not said."""
    # A bytearray is written to as it is made, and so twice; but its memory was most likely in use
    # before, which is cheaper than new pages.
    return memoryview(bytearray(size) if size < LARGE else _pages(size))


def _pages(size: int) -> mmap.mmap:
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            pages.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them
            pass
    return pages


def bytes_from(view: memoryview) -> bytes:
    """What a flat view shows, as `bytes`; a large one without keeping others from running.

    64 MiB take 40 ms by `tobytes`, which takes memory from the system in small pages, and 9 ms so.
    """
    if view.nbytes < BYTES_AT_ONCE:
        return view.tobytes()
    from monarch._src.wire.raw_memory import bytes_of  # ctypes is slow to load

    return bytes_of(view)
