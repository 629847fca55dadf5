"""The frames of a thread as users see them: without the frames of the runtime. No I/O."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import CodeType, FrameType

import msgspec

from monarch._src import errors

_RUNTIME = str(Path(errors.__file__).parent) + "/"
_HIDE = "__tracebackhide__"
AROUND = 8
MOST_LINES = 60


class Source(msgspec.Struct, frozen=True):
    """Source lines around the current line. `first` and `line` count from 1."""

    filename: str
    function: str
    first: int
    line: int
    lines: list[str]


def is_runtime(frame: FrameType) -> bool:
    """Whether the frame runs code of this package."""
    return frame.f_code.co_filename.startswith(_RUNTIME)


def is_users(frame: FrameType) -> bool:
    """Whether the frame is shown to users, as in tracebacks (`actor.errors.traceback_frames`)."""
    code = frame.f_code
    if is_runtime(frame):
        return False
    # Check the names first: reading `f_locals` discards changes that are not written back yet.
    return "__tracebackhide__" not in code.co_varnames or not frame.f_locals.get(_HIDE)


def bottom_of(frame: FrameType) -> FrameType:
    """The outermost user frame: of the endpoint, or of the target of the thread."""
    bottom = frame
    walked: FrameType | None = frame
    while walked is not None and not is_runtime(walked):
        if is_users(walked):
            bottom = walked
        walked = walked.f_back
    return bottom


def is_all_users(frame: FrameType, entries: frozenset[CodeType]) -> bool:
    """Whether no frame of the runtime lies between `frame` and the caller of the endpoint."""
    walked: FrameType | None = frame
    while walked is not None and walked.f_code not in entries:
        if is_runtime(walked):
            return False
        walked = walked.f_back
    return True


def function_of(frame: FrameType) -> str:
    """Its qualified name; Python 3.10 knows it for methods only."""
    code = frame.f_code
    if sys.version_info >= (3, 11):
        return code.co_qualname
    if code.co_argcount:
        first = frame.f_locals.get(code.co_varnames[0])
        for cls in (first if isinstance(first, type) else type(first)).__mro__:
            method = vars(cls).get(code.co_name)
            function = getattr(method, "function", method)  # of an endpoint
            if function is not None and getattr(function, "__code__", None) is code:
                return function.__qualname__
    return code.co_name


def code_at(frame: FrameType, line: int) -> str:
    """The text of that line, stripped."""
    return linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()


def source_of(frame: FrameType, line: int) -> Source:
    """The lines around `line` in the file of the frame; empty if there is no source text."""
    code = frame.f_code
    lines = linecache.getlines(code.co_filename, frame.f_globals)
    first = max(1, line - AROUND)
    shown = [text.rstrip("\n") for text in lines[first - 1 : line + AROUND]]
    return Source(code.co_filename, function_of(frame), first, line, shown[:MOST_LINES])


def suspends(frame: FrameType) -> bool:
    """Whether a frame with a `return` event only suspends, as a coroutine does at `await`."""
    code, at = frame.f_code.co_code, frame.f_lasti
    if not 0 <= at < len(code):
        return False
    # `f_lasti` is before the suspending instruction in 3.10, and where it will resume in 3.13.
    return code[at] in _WAITS or code[at + 2 : at + 3] in _WAITS_NEXT


def _opcodes(*names: str) -> frozenset[int]:
    opcode = sys.modules.get("opcode") or __import__("opcode")
    return frozenset(n for name, n in opcode.opmap.items() if name.startswith(names))


_WAITS = _opcodes("YIELD", *(["SEND"] if sys.version_info < (3, 13) else ["SEND", "RESUME"]))
_WAITS_NEXT = {bytes([number]) for number in _opcodes("YIELD_FROM")}
