"""Values between processes: arguments, answers, and what else a process sends as a pickle.

Runs in: any process. `pickling.pickler` makes the bytes; this module adds the source of code that
travels by value, so that tracebacks and debuggers of the receiver can show it. Each process of a
mesh receives the text of the source files, and most never show a line of it. To split 3,000 lines
takes a tenth of the time of a process's start, so that is done on first use. A value that can be
pickled here and rebuilt there passes through no other module of `actor`; one that cannot is
explained by `actor.call.pickling_errors` and `actor.call.unpickling_errors`.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, overload

from monarch._src.actor.call.target import Target
from monarch._src.actor.call.unpickling_errors import unreadable_answer_of
from monarch._src.pickling.pickler import ClassOf, SharedClasses, dumps, loads, may_import
from monarch._src.shape import Region
from monarch._src.system.imports import turn_to_import
from monarch._src.wire.frames import Payload


def source_of(filename: str) -> str | None:
    """The text of the file or notebook cell that code was compiled from; None if unknown."""
    return "".join(linecache.getlines(filename)) or None


def keep_sources(sources: Mapping[str, str]) -> None:
    """Make the sources of other processes' code available to tracebacks and debuggers here."""
    entries = cast("dict[str, Any]", linecache.cache)
    for filename, text in sources.items():
        # Without an mtime, linecache.checkcache leaves the entry alone.
        entries[filename] = (len(text), None, SourceLines(text), filename)


def pack_value(
    value: object,
    own: int = 0,
    *,
    loose: bool = False,
    defines: bool = False,
    shared: SharedClasses | None = None,
) -> Payload:
    """Pickle for another process, the source of by-value code included. See `dumps`."""
    return dumps(value, source_of, own, loose=loose, defines=defines, shared=shared)


def unpack_value(payload: Payload, class_of: ClassOf | None = None) -> Any:
    """Unpickle the result of `pack_value`.

    `class_of`: returns a class that was shared, see `loads`.
    """
    if not may_import(payload):
        return loads(payload, keep_sources, class_of)
    # The lock comes first: two threads that import while they unpickle can wait for each other.
    with turn_to_import():
        return loads(payload, keep_sources, class_of)


class AnswerReader:
    """Unpickles the answers to one call, on the thread that reads them."""

    __slots__ = ("_endpoint", "_region", "_target")

    def __init__(self, target: Target, region: Region, endpoint: str) -> None:
        self._target = target
        self._region = region
        self._endpoint = endpoint

    def read(self, position: int, payload: Payload) -> Any:
        """The answer of the rank at that position.

        Raises:
            TypeError: the answer cannot be unpickled here; the mesh is not affected.
        """
        try:
            return unpack_value(payload)
        except (MemoryError, RecursionError):
            raise  # a limit of this process or thread; the answer is valid
        except Exception as error:
            rank = self._region.global_rank(position)
            answer = (self._target, rank, self._endpoint)
            raise TypeError(unreadable_answer_of(*answer, payload, error)) from None


class SourceLines(Sequence[str]):
    """The lines of a text, with their line ends; split on first access."""

    __slots__ = ("_lines", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines: list[str] | None = None

    def _apart(self) -> list[str]:
        if self._lines is None:
            self._lines = self._text.splitlines(keepends=True)
        return self._lines

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        return self._apart()[at]

    def __len__(self) -> int:
        return len(self._apart())

    def __iter__(self) -> Iterator[str]:
        return iter(self._apart())
