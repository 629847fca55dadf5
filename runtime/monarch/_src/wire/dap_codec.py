"""Messages of the Debug Adapter Protocol in a stream of bytes. No I/O.

Each is a header with its length, then JSON.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias, cast

Message: TypeAlias = "dict[str, Any]"
LARGEST = 1 << 28  # bytes of one message


class DapError(ValueError):
    """The bytes are not of this protocol."""


def packed(message: Message) -> bytes:
    """The bytes of a message in the stream."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


class Unpacker:
    """Finds the messages in a stream, however it was cut."""

    def __init__(self, largest: int = LARGEST) -> None:
        self._data = bytearray()
        self._largest = largest

    def feed(self, data: bytes) -> list[Message]:
        """The messages that these bytes complete.

        Raises:
            DapError: the stream does not consist of messages.
        """
        self._data += data
        found: list[Message] = []
        while (one := self._one()) is not None:
            found.append(one)
        return found

    def _one(self) -> Message | None:
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            if len(self._data) > 8192:
                raise DapError("a header without end")
            return None
        length = _length(bytes(self._data[:end]))
        if length > self._largest:
            raise DapError(f"a message of {length:,} bytes; {self._largest:,} are the most")
        begin = end + 4
        if len(self._data) < begin + length:
            return None
        body = bytes(self._data[begin : begin + length])
        del self._data[: begin + length]
        try:
            message: Any = json.loads(body)
        except ValueError as error:
            raise DapError(f"a message that is not JSON: {error}") from None
        if not isinstance(message, dict):
            raise DapError("a message that is not an object")
        return cast(Message, message)


def _length(header: bytes) -> int:
    for line in header.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return int(value)
    raise DapError(f"a header without length: {header[:80]!r}")
