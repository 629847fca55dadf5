"""Keys of remote memory that have expired, but may still be known to a peer. No I/O.

A card gives a registered region a key of 32 bits (rkey) and checks it with every packet. The key
expires when the registration ends. But the card may issue the same number again, and then a peer
that remembers the old key would reach the new memory. So when a key expires that a peer knows, it
is recorded, and no new registration with that number is granted while a queue pair of that time
exists. When there are too many such keys, all queue pairs are closed, and the record is cleared.
"""

from __future__ import annotations

MOST = 1 << 16


class ExpiredKeys:
    """The record of expired keys."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._keys: set[int] = set()

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def ended(self, key: int) -> bool:
        """Record that a key has expired. True: close all queue pairs, then call `forget`."""
        self._keys.add(key)
        return len(self._keys) >= self._most

    def forget(self) -> None:
        """Clear the record: no peer with a queue pair can remember a key."""
        self._keys.clear()
