"""What was raised, as it is told: its frames, and the exceptions behind it. No I/O."""

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
    """An exception behind the one that is told.

    `how`: that one was raised `from` it, or `during` its handling, or is a group and has it `in`.
    """

    how: Literal["from", "during", "in"]
    exception_type: str
    message: str
    frames: tuple[Frame, ...] = ()

    @property
    def what(self) -> str:
        """One line, or more if its message has them."""
        said = f"{self.exception_type}: {self.message}" if self.message else self.exception_type
        match self.how:
            case "from":
                return f"because of {said}"
            case "during":
                return f"while it handled {said}"
            case "in":
                return f"in it: {said}"

    @property
    def place(self) -> tuple[object, ...]:
        """All but its words."""
        return (self.how, self.exception_type, self.frames)


def held_by(exception: BaseException) -> list[BaseException]:
    """What a group of exceptions holds; Python 3.10 knows groups from packages only."""
    if not any(kind.__name__ == "BaseExceptionGroup" for kind in type(exception).__mro__):
        return []
    held: tuple[BaseException, ...] = cast(Any, exception).exceptions
    return list(held)


def frames_text(frames: Sequence[Frame]) -> list[str]:
    """As in a traceback; bounded, since an endless recursion has a thousand."""
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
    """Each with the user's frames, once where several of a group were raised at one place."""
    lines: list[str] = []
    before: tuple[object, ...] = ()
    for one in behind:
        lines.append(one.what)
        if one.place != before:
            lines += frames_text([frame for frame in one.frames if frame.user])
        before = one.place
    return lines
