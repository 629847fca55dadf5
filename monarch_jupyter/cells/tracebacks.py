"""Tracebacks reduced to the user's own frames.

Runs in: any thread. Tracebacks are never changed; these functions make shorter copies.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from opcode import opmap
from types import TracebackType
from typing import Any, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
import ipykernel
import IPython

import monarch

MOST_LINKS = 200
_RAISE = opmap["RAISE_VARARGS"]


def _folder(package: Any) -> str:
    return os.path.dirname(os.path.abspath(package.__file__)) + os.sep


EXTENSION = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # monarch_jupyter
MACHINERY = (_folder(IPython), _folder(ipykernel), EXTENSION)
RUNTIME = _folder(monarch)
BETWEEN = (contextlib.__file__,)
PICKLED = (RUNTIME, _folder(cloudpickle))


def without_runtime(trace: TracebackType | None) -> TracebackType | None:
    """The traceback up to where the user's code enters the runtime, or the machinery of a magic."""
    whole = list(_links(trace))
    inner = (RUNTIME, *MACHINERY)
    outside = [_file(link).startswith(inner) for link in whole]
    begin = outside.index(False) if False in outside else 0
    end = next((at for at in range(begin, len(whole)) if outside[at]), len(whole))
    return _traceback_of(whole[:end])


def without_refusal(error: BaseException, trace: TracebackType | None) -> TracebackType | None:
    """The traceback up to the user's line that the runtime refused; None if this is no refusal.

    A refusal is an error that the runtime raises itself, by `raise`, about its arguments. Any other
    error inside the runtime, an assertion included, is the runtime's fault, not the user's. An
    error with a cause has more to show, unless its text names the cause and no user code led to it.
    """
    whole = list(_links(trace))
    inner = _entrance(whole)
    led_by_user = any(not _file(link).startswith(MACHINERY) for link in whole[:inner])
    if not led_by_user or inner == len(whole) or not _raises(whole[-1]):
        return None
    more = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if isinstance(error, AssertionError) or (more is not None and not _is_in_text(more, error)):
        return None
    # The runtime has called the user's code, as a function of monarch.compile.
    return _traceback_of([link for link in whole[:inner] if not _file(link).startswith(RUNTIME)])


def _entrance(whole: Sequence[TracebackType]) -> int:
    """The index of the frame from which on all are of the runtime.

    Its context managers have frames of the standard library between them.
    """
    entrance = at = len(whole)
    while at and _file(whole[at - 1]).startswith((RUNTIME, *BETWEEN)):
        at -= 1
        if _file(whole[at]).startswith(RUNTIME):
            entrance = at
    return entrance


def shortened(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the middle of a recursion: IPython takes 6 ms to show a frame."""
    whole = list(_links(trace))
    if len(whole) <= MOST_LINKS:
        return trace
    half = MOST_LINKS // 2
    return _traceback_of([*whole[:half], *whole[-half:]])


def without_extension(trace: TracebackType | None) -> TracebackType | None:
    """The traceback up to the user's call of this package; whole if nothing comes before it."""
    user: list[TracebackType] = []
    for link in _links(trace):
        if _file(link).startswith(EXTENSION):
            break
        user.append(link)
    return _traceback_of(user) or trace


def is_of_runtime(trace: TracebackType | None) -> bool:
    """Whether it leads through the runtime."""
    return any(_file(link).startswith(RUNTIME) for link in _links(trace))


@contextmanager
def without_cause(error: BaseException) -> Generator[None]:
    """Hide the cause of an error while it is shown."""
    cause, suppressed = error.__cause__, error.__suppress_context__
    error.__cause__ = None
    try:
        yield
    finally:
        error.__cause__, error.__suppress_context__ = cause, suppressed


@contextmanager
def with_short_causes(
    error: BaseException, of_ranks: tuple[type[BaseException], ...]
) -> Generator[None]:
    """Shorten the tracebacks of an error's causes to the user's frames while it is shown.

    This applies to errors `of_ranks`, whose text has the remote frames, and to refusals.
    """
    saved: list[tuple[BaseException, TracebackType | None, BaseException | None, bool]] = []
    seen = {id(error)}
    causes = _causes_of(error)
    while causes:
        one = causes.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        trace = one.__traceback__
        saved.append((one, trace, one.__cause__, one.__suppress_context__))
        if isinstance(one, of_ranks):
            one.__traceback__, one.__cause__ = shortened(without_runtime(trace)), None
        else:
            one.__traceback__ = shortened(without_refusal(one, trace) or trace)
            causes += _causes_of(one)
    try:
        yield
    finally:
        for one, trace, cause, suppressed in saved:
            one.__traceback__, one.__cause__ = trace, cause
            one.__suppress_context__ = suppressed


def _causes_of(error: BaseException) -> list[BaseException]:
    """The cause of an error, and its members if it is a group (a class that Python 3.10 lacks)."""
    found: list[BaseException] = []
    if any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__):
        found += cast(Any, error).exceptions
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found if before is None else [*found, before]


def _is_in_text(cause: BaseException, error: BaseException) -> bool:
    text = str(cause)
    if cause is not error.__cause__ or not text or text not in str(error):
        return False
    before: BaseException | None = cause
    while before is not None:
        whole = list(_links(before.__traceback__))
        if not whole or not all(_pickles(_file(link)) for link in whole):
            return False
        before = before.__cause__ or before.__context__
    return True


def _pickles(file: str) -> bool:
    """Whether the file belongs to a pickler; compiled modules name theirs by a relative path."""
    compiled = not os.path.isabs(file) and not file.startswith("<")
    return compiled or file.startswith(PICKLED)


def _raises(link: TracebackType) -> bool:
    """Whether the frame stands at a `raise` statement."""
    code = link.tb_frame.f_code.co_code
    return 0 <= link.tb_lasti < len(code) and code[link.tb_lasti] == _RAISE


def _file(link: TracebackType) -> str:
    return link.tb_frame.f_code.co_filename


def _links(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _traceback_of(links: Sequence[TracebackType]) -> TracebackType | None:
    made: TracebackType | None = None
    for link in reversed(links):
        made = TracebackType(made, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return made
