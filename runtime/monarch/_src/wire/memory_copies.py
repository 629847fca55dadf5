"""Memory for copies and for received bytes, obtained in the fastest way. No I/O."""

from __future__ import annotations

import mmap

CHEAP = 1 << 13
"""For fewer bytes than these, a copy is cheaper than a view or a second write."""
LARGE = 1 << 24
STEP = 1 << 22
BYTES_AT_ONCE = 1 << 20


def copied(memory: memoryview) -> bytearray | memoryview:
    """A copy of flat memory, which can be written to.

    A large copy is made in steps, between which other threads run, and in huge pages if the kernel
    has them. For 64 MiB that takes 5 ms, and a `bytearray`, whose pages are small, 24 ms.
    """
    size = memory.nbytes
    if size < LARGE:
        return bytearray(memory)
    pages = _pages(size)
    for at in range(0, size, STEP):
        pages[at : at + STEP] = memory[at : at + STEP]
    return memoryview(pages)


def room(size: int) -> memoryview:
    """Memory of that size, to be written to; its contents are undefined."""
    # A bytearray is zeroed first, so it is written to twice; but its memory was most likely in use
    # before, which is cheaper than fresh pages.
    return memoryview(bytearray(size) if size < LARGE else _pages(size))


def _pages(size: int) -> mmap.mmap:
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            pages.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without huge pages
            pass
    return pages


def bytes_from(view: memoryview) -> bytes:
    """The bytes of a flat view; a large one is copied while other threads run.

    64 MiB take 9 ms, and 40 ms by `tobytes`, which gets its memory in small pages.
    """
    if view.nbytes < BYTES_AT_ONCE:
        return view.tobytes()
    from monarch._src.wire.raw_memory import bytes_of  # ctypes is slow to load

    return bytes_of(view)
