"""Hints in the texts of errors: the `None` that `broadcast` returns, and magics for functions.

Runs in: the kernel's main thread.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType

from monarch.session import SessionError

_OF_NONE = re.compile(
    r"'NoneType' object (has no attribute|can't be awaited)|NoneType can't be (used|awaited)"
)
_BROADCAST = re.compile(r"\.broadcast\(")
_HINT = ".broadcast(...) returns None; .call(...) returns a future of the answers"


@contextmanager
def with_hint(error: BaseException, trace: TracebackType | None) -> Generator[None]:
    """Add a hint to the error's text while it is shown, if the line that raised it broadcasts."""
    said = str(error)
    if not (
        isinstance(error, (AttributeError, TypeError))
        and _OF_NONE.search(said)
        and _BROADCAST.search(_last_line(trace))
    ):
        yield
        return
    args, error.args = error.args, (f"{said}; {_HINT}",)
    try:
        yield
    finally:
        error.args = args


def _last_line(trace: TracebackType | None) -> str:
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)


_MAGICS = {"call detach() to release it": "`%monarch detach` releases it"}


@contextmanager
def with_magics(error: BaseException) -> Generator[None]:
    """Name the magic in place of the function in an error of sessions, while it is shown."""
    args, text = error.args, str(error)
    for said, instead in _MAGICS.items():
        if isinstance(error, SessionError) and said in text:
            error.args = (text.replace(said, instead),)
    try:
        yield
    finally:
        error.args = args
