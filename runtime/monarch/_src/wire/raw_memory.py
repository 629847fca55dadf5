"""Access to memory by address, and construction of `bytes` in place.

No I/O. Loaded with the first large payload, because importing ctypes takes time.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any, TypeAlias

_HUGE = 1 << 22  # from this size on memory is mostly fresh, and faster in huge pages
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
    """The start of a buffer's memory; valid while the buffer is referred to."""
    # ctypes' `from_buffer` does the same, but refuses read-only memory.
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    address = buffer.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address or 0


def bytes_of(view: memoryview) -> bytes:
    """`view.tobytes()` for a large flat view: in huge pages, while other threads run."""
    size = view.nbytes
    made: bytes = _new_bytes(None, size)  # no other code has seen it, so it may be written to
    start = _start_of(made)
    if size >= _HUGE and _MADV_HUGEPAGE is not None:
        begin = -(-start // _HUGE_PAGE) * _HUGE_PAGE
        end = (start + size) // _HUGE_PAGE * _HUGE_PAGE
        _libc.madvise(begin, end - begin, _MADV_HUGEPAGE)
    _copy(start, address_of(view), size, (made, view))
    return made


Copy: TypeAlias = "Callable[[int, int, int, object], None]"
"""Copies `size` bytes to the first address from the second; the object keeps both alive."""


def _copy_alone(to: int, source: int, size: int, _keep: object) -> None:
    ctypes.memmove(to, source, size)


_copy: Copy = _copy_alone


def copy_with(copy: Copy) -> None:
    """Use that function for copies from here on, such as one with several threads."""
    global _copy
    _copy = copy
