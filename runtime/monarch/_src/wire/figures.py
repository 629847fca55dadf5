"""What one process has counted of one endpoint, as it travels. No I/O.

The answer to `ReadMetrics` is a Reply whose payload is a MessagePack array of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from monarch._src.wire.frames import Payload


class Key(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which endpoint was counted, of whose actors, and by whom.

    `mesh` and `mesh_name` are those of the proc mesh that the actors live on. `adverb`: how this
    process called it; empty where it was this process that ran it.
    """

    mesh: int
    mesh_name: str
    actor_class: str
    actor: str
    endpoint: str
    adverb: str = ""


class Figures(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Counts since `observed_ns` ago, when the first call began.

    `untimed` calls ended in no time that means anything: nobody waits for a broadcast. `buckets`
    are pairs of a bucket's number (see `core.metrics`) and how many timed calls fell into it.
    Bytes are those of pickled arguments and answers.
    """

    key: Key
    calls: int
    untimed: int
    errors: int
    bytes_in: int
    bytes_out: int
    total_ns: int
    max_ns: int
    waited_ns: int
    observed_ns: int
    buckets: tuple[tuple[int, int], ...]

    @property
    def timed(self) -> int:
        """How many calls have ended and been timed."""
        return sum(count for _, count in self.buckets)

    @property
    def in_flight(self) -> int:
        """How many calls have begun and not ended."""
        return self.calls - self.untimed - self.timed


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Figures]).decode


def packed(figures: Sequence[Figures]) -> Payload:
    """As the payload of a Reply."""
    return Payload(_encode(figures))


def unpacked(payload: Payload) -> list[Figures]:
    """What `packed` was given.

    Raises:
        msgspec.MsgspecError: it is something else.
    """
    return _decode(payload.body)
