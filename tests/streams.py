"""What a test does with streams of messages (`wire.stream`)."""

from __future__ import annotations

from typing import Any

from monarch._src.wire.stream import Splitter


def fed(splitter: Splitter, data: bytes) -> list[list[Any]]:
    """The messages that are complete with these bytes, which it is given where it wants them.

    Raises:
        StreamError: this is no stream of messages.
    """
    found: list[list[Any]] = []
    while data and (into := splitter.into) is not None:
        count = min(len(into), len(data))
        into[:count] = data[:count]
        message = splitter.got(count)
        if message is not None:
            found.append(message)
        data = data[count:]
    return found + splitter.feed(data) if data else found
