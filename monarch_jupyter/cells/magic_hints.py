"""Magics in the texts of errors that name a function of the runtime.

Runs in: the kernel's main thread.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from monarch.session import SessionError

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
