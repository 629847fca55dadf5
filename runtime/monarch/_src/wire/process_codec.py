"""The metrics, live actors and recorded calls of one process, as messages carry them. No I/O.

The answer to `ReadMetrics` is a Reply whose payload is a `Counted` in MessagePack, that to
`ReadActors` an `ActorsSeen`, that to `ReadCalls` a `CallsRecorded`.
"""

from math import inf
from typing import Literal

import msgspec

from monarch._src.wire.frames import Payload
from monarch._src.wire.msgpack_text import pack, unpacker

MeasureKind = Literal["counter", "up_down_counter", "histogram", "gauge"]


class Key(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The endpoint or span that was counted, and its actors.

    `mesh` and `mesh_name` are those of the proc mesh of these actors. `adverb`: how this process
    called the endpoint; empty if this process ran it. `span`, only for a span: its name, with
    `parent`, the name of the enclosing one; `endpoint` is then the endpoint in which it ran.
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

    `untimed` calls have no meaningful duration: no caller waits for a broadcast. `buckets` are
    pairs of a bucket's number (see `actor.state.endpoint_metrics`) and the number of timed calls
    in it. Bytes are those of pickled arguments and answers.
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
        """How many calls have ended with a duration."""
        return sum(count for _, count in self.buckets)

    @property
    def in_flight(self) -> int:
        """How many calls have begun and not ended."""
        return self.calls - self.untimed - self.timed


class MeasureKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An instrument of a program, with its attributes and the actor that uses it."""

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
    """The count and the sum of an instrument's measurements.

    The sum includes finite numbers only; `not_finite` counts the others. `low`, `high` and
    `buckets` (see `actor.state.program_metrics`) are those of a histogram; for others they have no
    meaning.
    """

    key: MeasureKey
    count: int
    not_finite: int
    total: float
    low: float = inf
    high: float = -inf
    buckets: tuple[tuple[int, int], ...] = ()


class Counted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All metrics of a process: endpoints, spans, and the measurements of its program."""

    figures: tuple[Figures, ...] = ()
    measures: tuple[MeasureFigures, ...] = ()


_encode_metrics = msgspec.msgpack.Encoder().encode
_decode_metrics = msgspec.msgpack.Decoder(Counted).decode


def packed_metrics(counted: Counted) -> Payload:
    """The payload of a Reply."""
    return Payload(_encode_metrics(counted))


def unpacked_metrics(payload: Payload) -> Counted:
    """The metrics in a payload.

    Raises:
        UNREADABLE (`wire.msgpack_text`): the payload is something else.
    """
    return _decode_metrics(payload.body)


class SeenActor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One actor. `class_name` is qualified by its module; `attributes` are names with texts.

    `running`: its running endpoints, oldest first; `queued`: the number of calls that have not
    begun; `more`: the number of attributes left out. `ended`: it has failed, or was stopped.
    """

    name: str
    class_name: str
    running: tuple[str, ...]
    queued: int
    attributes: tuple[tuple[str, str], ...]
    more: int = 0
    ended: bool = False


class ActorsSeen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The actors of one process, in the order in which they were spawned."""

    actors: tuple[SeenActor, ...] = ()


_unpack_actors = unpacker(ActorsSeen)


def packed_actors(seen: ActorsSeen) -> Payload:
    """The payload of a Reply."""
    return Payload(pack(seen))


def unpacked_actors(payload: Payload) -> ActorsSeen:
    """The snapshot in a payload.

    Raises:
        UNREADABLE (`wire.msgpack_text`): the payload is something else.
    """
    return _unpack_actors(payload.body)


class RecordedCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call. `name` is a place in `CallsRecorded.names`.

    `began_ns`: since 1970, by the clock of its host; `took_ns` is None while it runs.
    """

    name: int
    began_ns: int
    took_ns: int | None
    failed: bool


class CallsRecorded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Calls in the order of their ends, then the running ones. `names`: actor and endpoint.

    `is_cut`: older ones that were asked for are missing.
    """

    names: tuple[tuple[str, str], ...] = ()
    calls: tuple[RecordedCall, ...] = ()
    is_cut: bool = False


_unpack_calls = unpacker(CallsRecorded)


def packed_calls(recorded: CallsRecorded) -> Payload:
    """The payload of a Reply."""
    return Payload(pack(recorded))


def unpacked_calls(payload: Payload) -> CallsRecorded:
    """The calls in a payload.

    Raises:
        UNREADABLE (`wire.msgpack_text`): the payload is something else.
    """
    return _unpack_calls(payload.body)
