"""The frames of a traceback or thread as data, and which of them are the user's.

Runs in: the process whose code runs, on the thread of the frames.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import FrameType, TracebackType

from monarch._src import errors
from monarch._src.failures.traceback import Frame

LONGEST_LINE = 200  # characters of a line of source, and of a function's name
MOST_FRAMES = 2000  # frames of one traceback; half of them from each end
# How the file names of the runtime's modules begin.
IN_RUNTIME = str(Path(errors.__file__).parent) + os.sep


def frames_of(tb: TracebackType | None) -> tuple[Frame, ...]:
    """The frames of a traceback, outermost first; of very many, those at both ends.

    Frames of the runtime, and of functions with a local `__tracebackhide__ = True` (as in pytest
    and IPython), are not marked as the user's.
    """
    return _frames(list(traceback.walk_tb(tb)))


def frames_here() -> tuple[Frame, ...]:
    """The user's frames on this thread, outermost first: those between frames of the runtime."""
    frames = list(_frames(list(traceback.walk_stack(sys._getframe(1)))[::-1]))  # pyright: ignore[reportPrivateUsage]
    while frames and not frames[-1].user:
        frames.pop()
    begin = max((at + 1 for at, frame in enumerate(frames) if not frame.user), default=0)
    return tuple(frames[begin:])


def _frames(walked: list[tuple[FrameType, int]]) -> tuple[Frame, ...]:
    if len(walked) > MOST_FRAMES:
        walked[MOST_FRAMES // 2 : -MOST_FRAMES // 2] = []
    hidden = [frame.f_locals.get("__tracebackhide__") is True for frame, _ in walked]
    found: list[Frame] = []
    for summary, hide in zip(traceback.StackSummary.extract(iter(walked)), hidden, strict=True):
        user = not hide and not summary.filename.startswith(IN_RUNTIME)
        found.append(
            Frame(
                summary.filename,
                summary.lineno or 0,
                summary.name[:LONGEST_LINE],
                (summary.line or "")[:LONGEST_LINE],
                user,
            )
        )
    return tuple(found)
