"""What one process has counted, as it travels. No I/O.

The answer to `ReadMetrics` is a Reply whose payload is a `Counted` in MessagePack.
"""

from math import inf
from typing import Literal

import msgspec

from monarch._src.wire.frames import Payload

MeasureKind = Literal["counter", "up_down_counter", "histogram"]


class Key(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which endpoint or span was counted, of whose actors, and by whom.

    `mesh` and `mesh_name` are those of the proc mesh that the actors live on. `adverb`: how this
    process called it; empty where it was this process that ran it. `span`, of a span only: its
    name, with `parent`, that of what it is part of; `endpoint` is then where that ran.
    """

    mesh: int
    mesh_name: str
    actor_class: str
    actor: str
    endpoint: str
    adverb: str = ""
    span: str = ""
    parent: str = ""


class Figures(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Counts since `observed_ns` ago, when the first call began.

    `untimed` calls ended in no time that means anything: nobody waits for a broadcast. `buckets`
    are pairs of a bucket's number (see `actor.state.endpoint_metrics`) and how many timed calls
    fell into it. Bytes are those of pickled arguments and answers.
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


class MeasureKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which instrument of a program, with which attributes, and in whose hands."""

    mesh: int
    mesh_name: str
    actor_class: str
    actor: str
    kind: MeasureKind
    name: str
    unit: str = ""
    description: str = ""
    attributes: tuple[tuple[str, str], ...] = ()


class MeasureFigures(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an instrument was given: how often, and the sum.

    The sum has finite numbers only; `not_finite` counts the others. `low`, `high` and `buckets`
    (see `actor.state.program_metrics`) are those of a histogram; of another they say nothing.
    """

    key: MeasureKey
    count: int
    not_finite: int
    total: float
    low: float = inf
    high: float = -inf
    buckets: tuple[tuple[int, int], ...] = ()


class Counted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All that a process has counted: endpoints and spans, and what its program measured."""

    figures: tuple[Figures, ...] = ()
    measures: tuple[MeasureFigures, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Counted).decode


def packed(counted: Counted) -> Payload:
    """As the payload of a Reply."""
    return Payload(_encode(counted))


def unpacked(payload: Payload) -> Counted:
    """What `packed` was given.

    Raises:
        UNREADABLE (`wire.msgpack_text`): it is something else.
    """
    return _decode(payload.body)
