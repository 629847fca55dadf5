"""Exceptions that come out of a collective of torch, told apart from those of the user's code.

Gloo raises a plain RuntimeError, so its text decides: `Connection closed by peer` and the like. A
program's own error may have such a text too. But its code raises with a `raise` statement, and
torch out of a call to C++, so the last instruction of the traceback tells the two apart. Errors
that torch has classes for need no look at the text.
"""

from __future__ import annotations

import enum
import opcode
import re
from types import TracebackType
from typing import Any

from monarch._src.spmd.torch_modules import torch_distributed

_RAISES = {opcode.opmap[name] for name in ("RAISE_VARARGS", "RERAISE") if name in opcode.opmap}
_OF_GLOO = re.compile(r"gloo/|caused pair closure|monitoredBarrier")
_BY_ITSELF = re.compile(r"Timed out|caused pair closure|monitoredBarrier")
_OF_A_STORE = re.compile(r"Connection|Broken pipe|failed to recv|Socket")
_PEER_LEFT = re.compile(
    r"closed by peer|reset by peer|Broken pipe|failed to recv|remote process|was aborted"
)


class StoreEndedError(Exception):
    """A rank waited for a store, and the process groups of its process were ended.

    It is no RuntimeError: torch's barrier at a store goes on after one.
    """


class Failure(enum.Enum):
    """The meaning of an exception for the process groups of its rank."""

    NONE = "none"  # nothing: it is of the program
    CONNECTION = "connection"  # a connection has ended, perhaps since a peer has died
    OWN = "own"  # a collective has failed by itself, such as by its time-out


def failure_of(error: BaseException) -> Failure:
    """The meaning of this exception, or of one that it was raised from or during."""
    return _failure_in(error)[1]


def tells_of_peer(error: BaseException) -> bool:
    """Whether it tells by itself that a peer has left: by its class, or by the backend's text."""
    found, failure = _failure_in(error)
    if failure is not Failure.CONNECTION:
        return False
    return isinstance(found, StoreEndedError) or _PEER_LEFT.search(str(found)) is not None


def _failure_in(error: BaseException) -> tuple[BaseException, Failure]:
    """The first exception with a meaning, along causes and contexts, and the meaning."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        found = _failure_of_one(one)
        if found is not Failure.NONE:
            return one, found
        one = one.__cause__ or one.__context__
    return error, Failure.NONE


def _failure_of_one(error: BaseException) -> Failure:
    if isinstance(error, StoreEndedError):
        return Failure.CONNECTION
    dist: Any = torch_distributed()
    text = str(error)
    if isinstance(error, dist.DistBackendError):
        return Failure.CONNECTION
    if isinstance(error, dist.DistError):  # of a store: absent keys are no failure of a group
        return Failure.CONNECTION if _OF_A_STORE.search(text) else Failure.NONE
    if type(error) is not RuntimeError or is_raised_by_statement(error):
        return Failure.NONE
    if not _OF_GLOO.search(text):
        return Failure.NONE
    return Failure.OWN if _BY_ITSELF.search(text) else Failure.CONNECTION


def is_raised_by_statement(error: BaseException) -> bool:
    """Whether Python code has raised it, and not C code that Python code has called."""
    last: TracebackType | None = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_code[last.tb_lasti] in _RAISES
