"""The calls of one process that ended last. No I/O, no clock.

Times are nanoseconds of one clock of the caller. Appends may come from any thread; a read on
another thread sees whole entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from monarch._src.wire.process_codec import CallsRecorded, RecordedCall

MOST = 4096
"""Ended calls that one process holds; the oldest are dropped."""

Name: TypeAlias = "tuple[bytes, bytes]"  # actor, endpoint
Running: TypeAlias = "tuple[int, bytes, bytes]"  # begin, actor, endpoint


class Entry:
    """One call that has ended."""

    __slots__ = ("began", "failed", "name", "took")

    def __init__(self, began: int, took: int, name: Name) -> None:
        self.began = began
        self.took = took
        self.name = name
        self.failed = False


class CallLog:
    """The last `most` calls that ended, in the order of their ends."""

    def __init__(self, most: int = MOST) -> None:
        self._entries: deque[Entry] = deque(maxlen=most)
        self._last_dropped: int | None = None  # when the newest of the dropped calls ended

    def add(self, running: Running, took: int) -> None:
        """A call has ended, `took` nanoseconds after it began."""
        began, actor, endpoint = running
        entries = self._entries
        if len(entries) == entries.maxlen:
            oldest = entries[0]
            self._last_dropped = oldest.began + oldest.took
        entries.append(Entry(began, took, (actor, endpoint)))

    def mark_failed(self) -> None:
        """The call that ended last has failed."""
        if self._entries:
            self._entries[-1].failed = True

    def read(self, running: Iterable[Running], after: int, most: int, offset: int) -> CallsRecorded:
        """The newest calls that ended after that time, up to `most`, and those that are `running`.

        `offset`: added to each time, so that it counts since 1970.
        """
        chosen: list[Entry] = []
        for entry in reversed(list(self._entries)):
            if entry.began + entry.took <= after or len(chosen) == most:
                break
            chosen.append(entry)
        chosen.reverse()
        oldest = chosen[0].began + chosen[0].took if chosen else 0
        is_cut = len(chosen) == most and self._has_older(oldest, after)
        names: dict[Name, int] = {}
        calls = [
            RecordedCall(_number(names, one.name), one.began + offset, one.took, one.failed)
            for one in chosen
        ]
        calls += [
            RecordedCall(_number(names, (actor, endpoint)), began + offset, None, False)
            for began, actor, endpoint in running
        ]
        dropped = self._last_dropped
        is_cut = is_cut or (dropped is not None and dropped > after)
        texts = tuple((_text(actor), _text(endpoint)) for actor, endpoint in names)
        return CallsRecorded(texts, tuple(calls), is_cut)

    def _has_older(self, oldest: int, after: int) -> bool:
        return any(after < one.began + one.took < oldest for one in list(self._entries))


def _number(names: dict[Name, int], name: Name) -> int:
    return names.setdefault(name, len(names))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
