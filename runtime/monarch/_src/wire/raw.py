"""Memory by its address, and `bytes` that are made where they are to stay.

No I/O. Loaded with the first large payload: ctypes takes its time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from typing import Any

_HUGE = 1 << 22  # from here on memory is mostly fresh, and comes quicker in large pages
_SHARED = 1 << 27  # from here on others help to copy: 256 MiB take two threads half as long
_MOST = 4  # who copy
_HUGE_PAGE = 1 << 21
_MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)
_libc: Any = ctypes.CDLL(None)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_new_bytes: Any = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_ssize_t]
_start_of: Any = ctypes.pythonapi.PyBytes_AsString
_start_of.restype, _start_of.argtypes = ctypes.c_void_p, [ctypes.py_object]


class _PyBuffer(ctypes.Structure):
    _fields_ = (
        ("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    )  # fmt: skip


def address_of(view: object) -> int:
    """Where the memory of a buffer begins; valid while that is referred to."""
    # `from_buffer` of ctypes would do it, but not for memory that is only to be read.
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    address = buffer.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address or 0


def bytes_of(view: memoryview) -> bytes:
    """`view.tobytes()` for a large flat view: in large pages, while other threads run."""
    size = view.nbytes
    made: bytes = _new_bytes(None, size)  # nobody else has seen it: it may still be written to
    start = _start_of(made)
    if size >= _HUGE and _MADV_HUGEPAGE is not None:
        begin = -(-start // _HUGE_PAGE) * _HUGE_PAGE
        end = (start + size) // _HUGE_PAGE * _HUGE_PAGE
        _libc.madvise(begin, end - begin, _MADV_HUGEPAGE)
    source = address_of(view)
    count = 1 if size < _SHARED else min(_MOST, os.cpu_count() or 1)
    each = -(-size // count)

    # A helper has both, so that their memory stays even if who waits for it is interrupted.
    def copy(at: int, _made: bytes, _view: memoryview) -> None:
        ctypes.memmove(start + at, source + at, min(each, size - at))

    helpers: list[threading.Thread] = []
    for at in range(each, size, each):
        helper = threading.Thread(
            target=copy, args=(at, made, view), name="monarch-copy", daemon=True
        )
        try:
            helper.start()
        except RuntimeError:  # there is no room for a thread, or the interpreter ends
            copy(at, made, view)
        else:
            helpers.append(helper)
    copy(0, made, view)
    for helper in helpers:
        helper.join()
    return made
