"""Every parser of bytes that somebody else has written, each with valid input and what it may say.

Runs in: whoever fuzzes. Owns: nothing; what is read from files lies in a folder that is given.
"""

from __future__ import annotations

import pickle
import random
import struct
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from monarch._src.errors import JobError
from monarch._src.host.status_board import SLOT, Board
from monarch._src.job import record as job_record
from monarch._src.job.trait import JobTrait
from monarch._src.net.hosts.link_ends import link_versions
from monarch._src.net.state.addresses import parse_address, parse_listening
from monarch._src.net.state.link import Link
from monarch._src.net.state.link_actions import Bounds
from monarch._src.net.streams import sockets as stream_sockets
from monarch._src.net.streams.dialling import Invitation, invitation
from monarch._src.net.tunnel.local_socket import Answer, Ask, read_answer, read_ask, written
from monarch._src.rdma.handle import Handle, Owner
from monarch._src.rdma.verbs import protocol
from monarch._src.rdma.verbs.device_choice import ChosenPort
from monarch._src.session import directories, records
from monarch._src.wire import link_protocol, process_codec, table_codec
from monarch._src.wire.frames import FrameError, Payload, decode, encode
from monarch._src.wire.messages import AnyMessage, Message
from monarch._src.wire.msgpack_text import UNREADABLE
from monarch._src.wire.process_codec import Counted, Figures, Key, MeasureFigures, MeasureKey
from monarch._src.wire.segment_refs import InSegment
from monarch._src.wire.stream import Splitter, StreamError, pack
from monarch_jupyter.errors import CommandError
from monarch_jupyter.protocol.messages import parse_page_message
from monarch_jupyter.protocol.requests import parse_request
from tests.fuzz.mutating import Source, data, frames, one_of, packed, value
from tests.streams import fed

Frames = Sequence[bytes]
DEEPEST = 5  # a failure holds failures
# What a stream announces, and cannot or does not hold.
ANNOUNCED = (
    0,
    1,
    200,
    (1 << 24) - 1,
    1 << 24,
    1 << 20,
    1 << 33,
    1 << 62,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
MOST_IN_STREAM = 4


@dataclass
class Parser:
    """`refuses`: what it raises for input that it does not take; nothing else may come out."""

    name: str
    parse: Callable[[Any], object]
    refuses: tuple[type[Exception], ...]
    mutated: Callable[[Source], Any]

    def takes(self, source: Source) -> bool:
        """Give it something; whether it was taken."""
        given = self.mutated(source)
        try:
            self.parse(given)
        except self.refuses:
            return False
        return True


# --- valid input ----------------------------------------------------------------------------------


def made(hint: Any, draw: random.Random, depth: int = 0) -> Any:
    """A small value of that type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    few = range(draw.randrange(3) if depth < DEEPEST else 0)
    simple: dict[Any, Callable[[], Any]] = {
        str: lambda: draw.choice(["", "5.0", "agent", "client-1", "gpus", "x" * 30]),
        int: lambda: draw.choice([0, 1, 2, 8, 1 << 40]),
        bytes: lambda: draw.randbytes(4),
        float: draw.random,
        bool: lambda: draw.random() < 0.5,
        type(None): lambda: None,
    }
    if hint in simple:
        return simple[hint]()
    if origin is typing.Literal:
        return draw.choice(inner)

    def below(kind: Any) -> Any:
        return made(kind, draw, depth + 1)

    if origin is list:
        return [below(inner[0]) for _ in few]
    if origin is dict:
        return {below(inner[0]): below(inner[1]) for _ in few}
    if origin is tuple:
        return tuple(below(kind) for kind in ([inner[0]] * len(few) if ... in inner else inner))
    if inner:  # a union
        return below(type(None) if type(None) in inner and not few else draw.choice(inner))
    hints = typing.get_type_hints(hint)
    names = getattr(hint, "__struct_fields__", hints)
    return hint(**{name: below(hints[name]) for name in names})


def valid_messages(each: int = 4) -> list[list[bytes]]:
    """Some of each kind, with payloads where there may be some."""
    draw = random.Random(1)
    found: list[list[bytes]] = []
    for kind in typing.get_args(AnyMessage):
        for number in range(each):
            message: Message = made(kind, draw)
            payload = Payload(b"")
            if message.carries_payload and number:
                body = pickle.dumps(((number,), {}), protocol=5)
                where = InSegment(1, 77, 5, 4711, 99, 3, 1 << 20, 2, True, False, False, ((0, 8),))
                payload = [
                    Payload(body), Payload(body, [bytes(20)]), Payload(body, (where,)),
                ][number % 3]  # fmt: skip
            found.append([bytes(frame) for frame in encode(message, payload)])
    return found


LINK_MESSAGES = [
    link_protocol.LinkHello("client-1", 5, link_versions(), 0, 0, 1 << 20, True),
    link_protocol.LinkHello("client-1", 5, {}, 9, 3, 1 << 20, False),
    link_protocol.Data(12, 1, 0, 1 << 20),
    link_protocol.Ack(12, 0, 1 << 20),
    link_protocol.Ping(12, 1, 0, 1 << 20),
    link_protocol.Pong(12, 1, 0, 1 << 20),
    link_protocol.Bye(12, True, "why"),
    link_protocol.LinkRefused(12, "why"),
]


def valid_link_frames() -> list[list[bytes]]:
    """Messages of a link; some with the frames of a message behind them."""
    inner = valid_messages(1)
    found = [[link_protocol.encode_link(message)] for message in LINK_MESSAGES]
    return found + [[link_protocol.encode_link(LINK_MESSAGES[2]), *behind] for behind in inner]


def headed(old: bytes, head: bytes) -> bytes:
    """The first frame of a message with another head."""
    (word,) = struct.unpack_from(">I", old)
    end = 4 + (word & 0xFFFFFF)
    return struct.pack(">I", word & 0xFF000000 | len(head)) + head + old[end:]


# --- mutated input --------------------------------------------------------------------------------


def message_frames(corpus: Sequence[list[bytes]]) -> Callable[[Source], list[bytes]]:
    """One of these, with a field of its head changed, or its bytes, or its frames."""

    def mutated(source: Source) -> list[bytes]:
        first, *rest = one_of(source, corpus)
        if source.below(2):
            return frames(source, [first, *rest])
        (word,) = struct.unpack_from(">I", first)
        head = packed(source, first[4 : 4 + (word & 0xFFFFFF)])
        return [headed(first, head), *rest]

    return mutated


def link_frames(corpus: Sequence[list[bytes]]) -> Callable[[Source], list[bytes]]:
    """The same for messages of a link."""

    def mutated(source: Source) -> list[bytes]:
        first, *rest = one_of(source, corpus)
        if source.below(2):
            return frames(source, [first, *rest])
        return [first[:1] + packed(source, first[1:]), *rest]

    return mutated


def streams(corpus: Sequence[list[bytes]]) -> Callable[[Source], list[bytes]]:
    """A few of these on a stream, of which one is not what it ought to be, in pieces as they come.

    It is shorter or longer than it says, says that it has other frames, or is any bytes.
    """

    def mutated(source: Source) -> list[bytes]:
        said = [
            b"".join(pack(one_of(source, corpus))) for _ in range(1 + source.below(MOST_IN_STREAM))
        ]
        at = source.below(len(said))
        said[at] = _other_stream(source, said[at])
        return cut(source, b"".join(said))

    return mutated


def _other_stream(source: Source, old: bytes) -> bytes:
    size = one_of(source, ANNOUNCED)
    match source.below(6):
        case 0:  # one frame, of another size
            return (size & 0x7FFFFFFF).to_bytes(4, "big") + old[4:]
        case 1:  # so many frames, of which some, or none, have a size
            count = one_of(source, (0, 1, 2, 300, 1 << 20, (1 << 20) + 1, (1 << 31) - 1))
            return (1 << 31 | count).to_bytes(4, "big") + old[4:]
        case 2:  # a frame of that size behind one that is there
            return struct.pack(">IQQ", 1 << 31 | 2, len(old), size) + old
        case 3:
            return source.some(300)
        case 4:
            return old
        case _:
            return data(source, old)


def cut(source: Source, whole: bytes) -> list[bytes]:
    """Those bytes as they were said at once, in two pieces, or drop by drop."""
    match source.below(8):
        case 0 | 1 | 2 | 3:
            return [whole]
        case 4:
            size = 1 + source.below(16)
            drops = [whole[at : at + size] for at in range(0, min(len(whole), 200), size)]
            return [*drops, whole[200:]]
        case _:
            at = source.below(len(whole) + 1)
            return [whole[:at], whole[at:]]


def bodies(valid: Sequence[object]) -> Callable[[Source], bytes]:
    """MessagePack of one of these, with a field changed."""
    encoded = [msgspec.msgpack.encode(one) for one in valid]
    return lambda source: packed(source, one_of(source, encoded))


def texts(valid: Sequence[bytes]) -> Callable[[Source], bytes]:
    """JSON with a value changed, or any bytes."""

    def mutated(source: Source) -> bytes:
        old = one_of(source, valid)
        if not source.below(3):
            return data(source, old)
        return msgspec.json.encode(value(source, msgspec.json.decode(old)))

    return mutated


# --- the parsers ----------------------------------------------------------------------------------


def _comes(pieces: Frames) -> None:
    """A stream hands on messages that have a first frame, which can't be written to."""
    splitter = Splitter(b"from")
    for piece in pieces:
        for message in fed(splitter, piece):
            assert message[0] == b"from"
            assert memoryview(message[1]).readonly


def _link_says(parts: Frames) -> None:
    """A link, as it is after its hello, takes whatever can be decoded, and stays sound."""
    message = link_protocol.decode_link(parts)
    link = Link("worker-1", 9, link_versions(), "client-1", Bounds(20.0, 1.0), 0.0)
    link.connected(0.0)
    link.received(LINK_MESSAGES[0], [], 0.0)
    link.send([b"something"], 0.0)
    link.received(message, list(parts[1:]), 1.0)
    link.validate()
    link.time_passed(2.0)
    link.close("it is over", 3.0)


OWNER = Owner(b"i" * 16, "h1", 7, 3, "5.0", "ipc:///x")
HANDLE = Handle(1, OWNER, 3, b"k" * 16, 100, False, True, "holder", "5.0.1")
ENDS = protocol.Ends(
    made(ChosenPort, random.Random(2)), 1024, 4, 4, ((7, 99), (8, 100)),
)  # fmt: skip
ASKS = [
    written(Ask("tcp://h2:26600")),
    written(Ask("tcp://[fd00::2]:1", join=True)),
    written(Ask()),
]
ANSWERS = [written(Answer("tcp://10.0.0.2:26600", "/tmp/via")), written(Answer(why="nobody"))]
INVITATION = Invitation(
    stream_sockets.ServerAddress(["10.0.0.1"], 4711, b"s" * 32), b"i" * 16, b"t" * 16, 5.0
)  # fmt: skip
SAID: list[tuple[type, object]] = [
    (protocol.Connect, protocol.Connect(b"c" * 16, OWNER, ENDS)),
    (protocol.Connected, protocol.Connected(ENDS, 1, 2, 3)),
    (protocol.Wants, protocol.Wants(b"c" * 16, (protocol.Want(1, b"k" * 16, 100),))),
    (protocol.Grants, protocol.Grants(True, (protocol.Grant(1, 2),))),
]
RECORD = msgspec.json.encode(records.Record(7, "1", "client-1", 8, "2", "python x", 1.5, ""))
KEPT = msgspec.json.encode(
    records.KeptRecord(
        "training", 1.5, 0, "root", "h1", 7, "1", {"python": "3.11"}, ["workers"],
        records.HolderRecord("client-1", 8, "2", "python x", "h1", 1.5), "",
    )
)  # fmt: skip
JOB = msgspec.json.encode(
    job_record.JobRecord(
        1, "monarch._src.job.launchers.process:ProcessJob", "a1", 1.5,
        {"_meshes": {"a": 2}, "_env": {}, "_workers": [], "_directory": None, "_host": "h1"},
    )
)  # fmt: skip
SEEN = process_codec.ActorsSeen(
    (process_codec.SeenActor("trainers", "Trainer", ("step",), 3, (("rate", "0.1"),), 2, False),)
)
TABLE: list[object] = [[["a", None], [0, 1, 0]], [[1, 2.5, True], []]]
COUNTED = Counted(
    (Figures(Key(1, "m", "A", "a", "step"), 3, 0, 1, 5, 5, 9, 9, 9, 9, ((3, 2), (4, 1))),),
    (
        MeasureFigures(
            MeasureKey(1, "m", "A", "a", "histogram", "loss", "nats", "", (("k", "v"),)),
            3, 1, 1.5, 0.5, 1.0, ((250, 1), (254, 1)),
        ),
    ),
)  # fmt: skip
PAGE: list[object] = [
    {"do": "stop", "mesh": "5", "ranks": [1, 2]}, {"do": "stacks", "mesh": "5", "ranks": [0]},
    {"do": "lines", "mesh": "m", "cell": 3, "ranks": None, "grep": "x", "page": 1},
    {"do": "spawn", "name": "m", "sizes": {"gpus": 2}, "keep": False},
    {"do": "attach", "name": "m"}, {"do": "sessions"}, {"type": "sync", "view": "v"},
    {"type": "leave", "view": "v"}, {"type": "ask", "view": "v", "id": 3, "what": {"do": "stop"}},
]  # fmt: skip
ADDRESSES = [
    b"tcp://10.0.0.1:5555", b"tcp://[::1]:5555", b"ipc:///tmp/x", b"tcp://h1:1@tcp://0.0.0.0:1",
]  # fmt: skip


def _written(folder: Path, name: str) -> Callable[[bytes], Path]:
    def write(content: bytes) -> Path:
        path = folder / name
        path.write_bytes(content)
        path.chmod(0o600)
        return path

    return write


def parsers(folder: Path, board: Board) -> list[Parser]:
    """All of them. `folder` is private, and for files that are read."""
    session = folder / "monarch-fuzzed"
    session.mkdir(mode=0o700)
    lock, kept = _written(session, "lock"), _written(session, "kept")
    job = _written(folder, "job")

    def look(content: bytes) -> object:
        lock(content)
        kept(content)
        return directories.look_at(session)

    def read_job(content: bytes) -> object:
        found = job_record.read(job(content))
        kind = job_record.class_of(found.kind, JobTrait, "it")
        return job_record.restored(kind, found.values, frozenset({"_is_applied"}), "it")

    def read_board(content: bytes) -> object:
        board._map[:SLOT] = bytes(content)[:SLOT].ljust(SLOT, b"\0")  # as a rank may
        return board.read(0)

    def decoded(content: bytes) -> str:
        return content.decode("utf-8", "replace")

    def of_json(parse: Callable[[object], object]) -> Callable[[bytes], object]:
        return lambda content: parse(msgspec.json.decode(content))

    pages = [msgspec.json.encode(one) for one in PAGE]
    return [
        Parser("a stream", _comes, (StreamError,), streams(valid_messages())),
        Parser("a message", decode, (FrameError,), message_frames(valid_messages())),
        Parser("a link's", _link_says, (FrameError,), link_frames(valid_link_frames())),
        Parser(
            "figures", lambda body: process_codec.unpacked_metrics(Payload(body)), UNREADABLE,
            bodies([COUNTED]),
        ),
        Parser("actors", lambda body: process_codec.unpacked_actors(Payload(body)), UNREADABLE,
        bodies([SEEN])),
        Parser("columns of a table", lambda body: table_codec.unpacked(body, 2, 3), (ValueError,),
        bodies([TABLE])), *(
            Parser(f"verbs: {kind.__name__}", _as(kind), (ValueError,), bodies([valid]))
            for kind, valid in SAID
        ),
        Parser("an invitation", invitation, (ValueError,), bodies([INVITATION])),
        Parser("what is asked of a gateway", read_ask, (ValueError,), texts(ASKS)),
        Parser("what a gateway answers", read_answer, (ValueError,), texts(ANSWERS)),
        Parser("a handle", _as(Handle), (ValueError,), bodies([HANDLE])),
        Parser("the lock of a session", lambda c: records.read_lock(lock(c)), (), texts([RECORD])),
        Parser("a kept session", lambda c: records.read_kept(kept(c)), (), texts([KEPT])),
        Parser("a session", look, (), texts([RECORD, KEPT])),
        Parser("a job", read_job, (JobError,), texts([JOB])),
        Parser("the board", read_board, (), lambda source: source.some(SLOT)),
        Parser(
            "a request of a page", of_json(parse_request), (CommandError, *UNREADABLE),
            texts(pages),
        ),
        Parser("what a page says", of_json(parse_page_message), UNREADABLE, texts(pages)),
        Parser(
            "an address", lambda c: parse_address(decoded(c)), (ValueError,),
            lambda source: data(source, one_of(source, ADDRESSES)),
        ),
        Parser(
            "where to listen", lambda c: parse_listening(decoded(c)), (ValueError,),
            lambda source: data(source, one_of(source, ADDRESSES)),
        ),
    ]  # fmt: skip


def _as(kind: type) -> Callable[[bytes], object]:
    return lambda body: protocol.decode(body, kind)
