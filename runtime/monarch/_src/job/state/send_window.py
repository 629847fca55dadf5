"""SendWindow: how many bytes may be sent before the receiver has written earlier ones. Pure."""

from __future__ import annotations

LIMIT = 4 << 20  # bytes; a fast sender cannot fill the memory of a slow receiver
PIECE = 512 << 10  # bytes that one message carries at most


class SendWindow:
    """Counts bytes that were sent and not reported as taken yet."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._pending = 0

    @property
    def room(self) -> int:
        """Bytes that may be sent now, at most one piece; 0: wait for a report."""
        return max(0, min(PIECE, self._limit - self._pending))

    @property
    def pending(self) -> int:
        """Bytes that the receiver has not reported yet."""
        return self._pending

    def on_sent(self, count: int) -> None:
        """That many bytes were sent."""
        self._pending += count

    def on_taken(self, count: int) -> None:
        """The receiver has written that many bytes.

        Raises:
            ValueError: more than were sent.
        """
        if not 0 <= count <= self._pending:
            raise ValueError(f"{count} bytes are reported as taken, of {self._pending} sent")
        self._pending -= count
