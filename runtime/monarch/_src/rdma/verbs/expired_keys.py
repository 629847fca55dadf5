"""Keys of remote memory that are expired, and may still be known to somebody. No I/O.

A card gives a registered region a key of 32 bits (rkey) and checks it with every packet; when the
registration ends, so does the key. But a card may give the same number again, and then a peer that
remembers the old one would reach the new memory. So a key that a peer was told is written down when
it ends, and no new registration is told to anybody under such a number while a queue pair of those
days lives. When there are too many of them, the queue pairs are closed, and all is forgotten.
"""

from __future__ import annotations

MOST = 1 << 16


class ExpiredKeys:
    """See the module's text."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._keys: set[int] = set()

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def ended(self, key: int) -> bool:
        """A key that somebody was told is valid no more. True: close all queue pairs, `forget`."""
        self._keys.add(key)
        return len(self._keys) >= self._most

    def forget(self) -> None:
        """Nobody has a queue pair to us who could remember any."""
        self._keys.clear()
