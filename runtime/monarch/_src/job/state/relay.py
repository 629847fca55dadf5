"""RelayState: when the two ends of a forwarded connection may read, and when it is over. Pure."""

from __future__ import annotations

from monarch._src.job.state.send_window import LIMIT, SendWindow


class RelayState:
    """One end of a connection: the bytes read here, and the bytes from the other end.

    Each direction ends by itself, as those of a TCP connection do.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._window = SendWindow(limit)
        self._read_all = False
        self._written_all = False

    @property
    def room(self) -> int:
        """Bytes that may be read from the socket now; 0: none until the other end has written."""
        return 0 if self._read_all else self._window.room

    @property
    def has_read_all(self) -> bool:
        """Whether the program at this end sends no more."""
        return self._read_all

    @property
    def is_over(self) -> bool:
        """Whether both directions have ended."""
        return self._read_all and self._written_all

    def on_read(self, count: int) -> None:
        """That many bytes were read and sent to the other end; 0: there are no more.

        Raises:
            ValueError: the socket had ended.
        """
        if self._read_all:
            raise ValueError("nothing can be read after the end")
        self._window.on_sent(count)
        self._read_all = not count

    def on_taken(self, count: int) -> None:
        """The other end has written that many bytes. ValueError if more than were sent."""
        self._window.on_taken(count)

    def on_end_written(self) -> None:
        """The other end has ended, and everything from there was written."""
        self._written_all = True
