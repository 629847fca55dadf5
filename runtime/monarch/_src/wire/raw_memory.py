"""Memory by its address, and `bytes` that are made where they are to stay.

No I/O. Loaded with the first large payload: ctypes takes its time.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any, TypeAlias

_HUGE = 1 << 22  # from here on memory is mostly fresh, and comes quicker in large pages
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
    _copy(start, address_of(view), size, (made, view))
    return made


Copy: TypeAlias = "Callable[[int, int, int, object], None]"
"""Copies so many bytes to the first address from the second; the object keeps both alive."""


def _copy_alone(to: int, source: int, size: int, _keep: object) -> None:
    ctypes.memmove(to, source, size)


_copy: Copy = _copy_alone


def copy_with(copy: Copy) -> None:
    """Have that make the copies from here on: who may have threads knows how to be quicker."""
    global _copy
    _copy = copy
