"""Remote tracebacks as data: frames, and chained or grouped exceptions. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal, cast

import msgspec

FIRST_FRAMES, LAST_FRAMES = 10, 20


class Frame(msgspec.Struct, frozen=True):
    """One line of a remote traceback. `user` is False for frames of the runtime itself."""

    filename: str
    lineno: int
    name: str
    line: str
    user: bool = True


class Behind(msgspec.Struct, frozen=True):
    """An exception that is chained to a reported one, or is a member of a reported group.

    `how`: the reported exception was raised `from` this one, or `during` its handling, or is a
    group with this one `in` it.
    """

    how: Literal["from", "during", "in"]
    exception_type: str
    message: str
    frames: tuple[Frame, ...] = ()

    @property
    def what(self) -> str:
        """The relation and the exception; one line, or more if its message has more."""
        error = f"{self.exception_type}: {self.message}" if self.message else self.exception_type
        match self.how:
            case "from":
                return f"because of {error}"
            case "during":
                return f"while it handled {error}"
            case "in":
                return f"in it: {error}"

    @property
    def place(self) -> tuple[object, ...]:
        """A key of everything but the message."""
        return (self.how, self.exception_type, self.frames)


def held_by(exception: BaseException) -> list[BaseException]:
    """The members of an exception group, else none; by name, as Python 3.10 has no such class."""
    if not any(kind.__name__ == "BaseExceptionGroup" for kind in type(exception).__mro__):
        return []
    held: tuple[BaseException, ...] = cast(Any, exception).exceptions
    return list(held)


def frames_text(frames: Sequence[Frame]) -> list[str]:
    """Lines as in a traceback; bounded, since an endless recursion has a thousand frames."""
    runs = [(frame, len(list(same))) for frame, same in groupby(frames)]
    left_out = len(runs) - FIRST_FRAMES - LAST_FRAMES
    lines: list[str] = []
    for at, (frame, count) in enumerate(runs):
        if left_out > 0 and FIRST_FRAMES <= at < FIRST_FRAMES + left_out:
            if at == FIRST_FRAMES:
                lines.append(f"  ... {left_out} more frames ...")
            continue
        lines.append(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}')
        if frame.line:
            lines.append(f"    {frame.line}")
        if count > 1:
            lines.append(f"  [the same {count - 1} more times]")
    return lines


def behind_text(behind: Sequence[Behind]) -> list[str]:
    """Each exception with the user's frames; neighbours raised at one place share them."""
    lines: list[str] = []
    previous: tuple[object, ...] = ()
    for exception in behind:
        lines.append(exception.what)
        if exception.place != previous:
            lines += frames_text([frame for frame in exception.frames if frame.user])
        previous = exception.place
    return lines
