"""User data <-> bytes: pickle protocol 5, by reference or by value. No I/O.

Measured on one int argument: `pickle.dumps` 0.16 us, a cloudpickle pickler 1.4 us. So arguments
made only of builtin types and arrays take the plain pickler; everything else takes one that also
knows functions and classes that the other side could not import (those of `__main__` and of cells,
lambdas, closures). What travels by value takes the source text of its files along, so that
tracebacks and debuggers on the other side can show it.

What is sent is what the value was at the call: memory that somebody may still change is copied
once; who sends at once may have it `loose`, and copies it to where it is to be. Not copied is what
nobody can change: that of `bytes`, and what a `FrozenBuffer` holds. An array that is only marked
read-only has an owner who can change it.

Body: a pickle; or, if sources travel along, `S`, a u32 (big endian) and that many bytes of pickled
`{filename: source}`, then the pickle. Buffers of `SEGMENT_FROM` bytes and more travel out of band;
those that can be written to are copied first, since sending goes on after the call that sends has
returned.
"""

from __future__ import annotations

import builtins
import importlib
import pickle
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from monarch._src.wire.apart import SEGMENT_FROM
from monarch._src.wire.buffers import Buffer as WriteBuffer
from monarch._src.wire.buffers import FrozenBuffer, whole
from monarch._src.wire.code_objects import reduce_code
from monarch._src.wire.frames import Buffer, Payload, carried
from monarch._src.wire.memory import copied
from monarch._src.wire.storages import (
    Memory,
    is_rebuild_of_untyped,
    rebuild_of_untyped,
    reduce_storage,
)

_dumps, _loads = pickle.dumps, pickle.loads
LARGEST_PLAIN = 64
_SOURCES = ord("S")
_ATOMS = frozenset({int, float, str, bool, type(None), complex})

SourceOf = Callable[[str], "str | None"]
KeepSources = Callable[[Mapping[str, str]], None]


def _keeper(
    buffers: list[Buffer], fixed: Mapping[int, pickle.PickleBuffer], loose: list[int] | None
) -> Callable[[pickle.PickleBuffer], bool]:
    """What pickle asks of each buffer: whether to write it into the stream.

    With a list for those that are `loose` none is copied.
    """

    def keep(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous: pickle copies it in band
            return True
        if raw.nbytes < SEGMENT_FROM:
            return True
        # The message may leave long after the call, when the process it is for has begun.
        unchanging = id(buffer) in fixed or _is_of_bytes(raw)
        if loose is not None and not unchanging:
            loose.append(len(buffers))
            unchanging = True  # until it is copied to its place
        buffers.append(raw if unchanging else copied(raw))
        return False

    return keep


class _Pieces(list[Any]):
    """The file that a pickler writes to. It copies no large object, as `io.BytesIO` would."""

    __slots__ = ()
    write = list[Any].append

    def joined(self) -> bytes:
        """All that was written, in memory of exactly that size."""
        return b"".join(
            piece.raw() if type(piece) is pickle.PickleBuffer else piece for piece in self
        )


class _Pickler(cloudpickle.Pickler):  # pyright: ignore[reportUntypedBaseClass]
    """cloudpickle's, which keeps the file name of code and notes the files that code came from."""

    def __init__(
        self, file: _Pieces, buffers: list[Buffer], loose: list[int] | None = None
    ) -> None:
        self._fixed: dict[int, pickle.PickleBuffer] = {}
        keep = _keeper(buffers, self._fixed, loose)
        super().__init__(file, protocol=5, buffer_callback=keep)  # pyright: ignore[reportUnknownMemberType]
        self.files: set[str] = set()
        self._storages: dict[int, Memory] = {}

    def reducer_override(self, obj: Any) -> Any:
        kind = type(cast(object, obj))
        if kind is type and obj.__module__.startswith("monarch."):
            # An error is shown as one of a public module, which nobody has to have imported here;
            # what cloudpickle does not find there would travel by value.
            importlib.import_module(obj.__module__)
        if kind is FunctionType or kind.__name__ in _EXITS:
            name = _pythons_own(obj, kind)
            if name is not None:
                return getattr, (builtins, name)
        if kind is FrozenBuffer or kind is WriteBuffer:
            reduced = obj.__reduce_ex__(5)
            self._fixed.update((id(piece), piece) for piece in reduced[1])
            return reduced
        if kind.__module__ == "torch.storage" and kind.__name__ in (
            "TypedStorage",
            "UntypedStorage",
        ):
            return reduce_storage(obj, self._storages) or NotImplemented
        if kind is FunctionType and is_rebuild_of_untyped(obj):
            return rebuild_of_untyped, ()
        if kind is CodeType:
            self.files.add(obj.co_filename)
            return reduce_code(obj)
        reduced = super().reducer_override(obj)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        if kind is FunctionType and reduced is not NotImplemented:
            self.files.add(obj.__code__.co_filename)
        return cast(Any, reduced)


# What a notebook puts in the place of functions of Python's, by class: `exit` there ends a kernel,
# and would take all of it along; `open` refuses its pipes, and would take the text of IPython.
_EXITS = ("ExitAutocall", "ZMQExitAutocall")
_OF_NOTEBOOKS = ("IPython.core.autocall", "ipykernel.zmqshell")
_OPENS = "IPython.core.interactiveshell"


def _pythons_own(obj: Any, kind: type) -> str | None:
    """The name of Python's own function that a notebook's stands for; None for all else."""
    if kind is FunctionType:
        is_open = obj.__name__ == "open" and obj.__globals__.get("__name__") == _OPENS
        return "open" if is_open else None
    return "exit" if kind.__module__ in _OF_NOTEBOOKS else None


def _is_of_bytes(raw: memoryview) -> bool:
    """Whether this memory is that of a `bytes`, as seen through views and numpy's arrays."""
    owner: Any = raw if raw.readonly else None
    while type(owner) is not bytes:
        if type(owner) is memoryview:
            owner = owner.obj
        elif type(owner).__module__ == "numpy":
            owner = getattr(owner, "base", None)
        else:
            return False
    return True


_FULL, _PLAIN, _BULKY = 0, 1, 2
_BULK = 1 << 16  # bytes from which on pickle gives them to its file, without a copy of its own


def _which(value: object, depth: int = 3) -> int:
    """Which pickler it takes: the full one, the plain one, or the plain one with a file."""
    kind = type(value)
    if kind in _ATOMS:
        return _PLAIN
    if kind is bytes:
        return _PLAIN if len(cast(bytes, value)) < _BULK else _BULKY
    if kind is bytearray:
        return _PLAIN
    if kind is tuple or kind is list:
        items = cast("tuple[object, ...] | list[object]", value)
    elif kind is dict:
        table = cast("dict[object, object]", value)
        if len(table) > LARGEST_PLAIN:
            return _FULL
        for key in table:
            if type(key) not in _ATOMS:
                return _FULL
        items = table.values()
    elif kind.__name__ == "ndarray" and kind.__module__ == "numpy":
        if cast(Any, value).dtype.hasobject:
            return _FULL
        return _PLAIN if cast(Any, value).nbytes < _BULK else _BULKY
    else:
        return _FULL
    if not depth or len(items) > LARGEST_PLAIN:
        return _FULL
    depth -= 1
    found = _PLAIN
    for item in items:
        if type(item) not in _ATOMS:
            which = _which(item, depth)
            if which != _PLAIN:
                if which == _FULL:
                    return _FULL
                found = _BULKY
    return found


def dumps_arguments(args: tuple[object, ...], kwargs: dict[str, object]) -> Payload | None:
    """`dumps((args, kwargs), own=2)` where they are atoms, as most are; else None."""
    for value in args:
        if type(value) not in _ATOMS:
            return None
    return None if kwargs else Payload(_dumps((args, kwargs), 5))


def dumps(
    value: object, source_of: SourceOf | None = None, own: int = 0, *, loose: bool = False
) -> Payload:
    """Pickle for another process. What happens to `value` afterwards does not change the payload.

    Args:
        source_of: gives the text of a file to send along, if any.
        own: how many levels of tuples and dicts, from the outside, are the caller's own: nothing
            else refers to them, so that large `bytes` in them can be taken out of band.
        loose: the payload may refer to memory that others change; see `Payload.loose`.

    Raises whatever the objects' own reduction raises (`TypeError`, `pickle.PicklingError`, ...).
    """
    which = _PLAIN if type(value) in _ATOMS else _which(value)
    if which == _PLAIN:
        return Payload(_dumps(value, 5))
    buffers: list[Buffer] = []
    changing: list[int] | None = [] if loose else None
    value = _lifted(value, own, {})
    file = _Pieces()
    if which == _BULKY:
        pickle.Pickler(file, 5, buffer_callback=_keeper(buffers, {}, changing)).dump(value)
        return Payload(file.joined(), buffers, changing or ())
    pickler = _Pickler(file, buffers, changing)
    pickler.dump(value)  # pyright: ignore[reportUnknownMemberType]
    body = file.joined()
    if pickler.files and source_of is not None:
        found = {name: source_of(name) for name in sorted(pickler.files)}
        sources = {name: text for name, text in found.items() if text}
        if sources:
            packed = pickle.dumps(sources, 5)
            body = b"S" + len(packed).to_bytes(4, "big") + packed + body
    return Payload(body, buffers, changing or ())


def loads(payload: Payload, keep_sources: KeepSources | None = None) -> Any:
    """Rebuild what `dumps` was given; sources that came along go to `keep_sources` first.

    Only for peers that are known: unpickling runs what the sender chose.
    """
    if payload.buffers:
        payload = carried(payload)
    body = payload.body
    try:
        first = body[0]
    except IndexError:
        raise pickle.UnpicklingError("the message came without its payload") from None
    if first == _SOURCES:
        view = memoryview(body)
        end = 5 + int.from_bytes(view[1:5], "big")
        if keep_sources is not None:
            keep_sources(pickle.loads(view[5:end]))
        body = view[end:]
    buffers: Any = payload.buffers
    return _loads(body, buffers=buffers)


def pickle_in(payload: Payload) -> Buffer:
    """The pickle alone, without the sources that came along."""
    body = memoryview(payload.body)
    if len(body) and body[0] == _SOURCES:
        return body[5 + int.from_bytes(body[1:5], "big") :]
    return body


# Opcodes of atoms: how many bytes follow, or (negated) how many say how many follow.
_FOLLOWED_BY = {
    0x4E: 0, 0x88: 0, 0x89: 0,  # None, True, False
    0x4B: 1, 0x4D: 2, 0x4A: 4, 0x8A: -1,  # int
    0x47: 8,  # float
    0x8C: -1, 0x58: -4, 0x43: -1, 0x42: -4,  # str, bytes
}  # fmt: skip
_FRAMED = 0x95


def is_atom(payload: Payload) -> bool:
    """Whether this is the pickle of one None, bool, int, float, str or bytes, and of nothing else.

    Equal ones may stand for each other: nobody can change them in place. Errs on the side of False.
    """
    body = payload.body
    if payload.buffers or len(body) < 4 or body[0] != 0x80:
        return False
    at = 11 if body[2] == _FRAMED and len(body) > 12 else 2
    follow = _FOLLOWED_BY.get(body[at])
    if follow is None:
        return False
    if follow < 0:
        follow = -follow + int.from_bytes(body[at + 1 : at + 1 - follow], "little")
    end = at + 1 + follow
    return len(body) - end in (1, 2) and bytes(body[end:]) in (b".", b"\x94.")


class _Lifted:
    """A large `bytes` that travels out of band and arrives as `bytes` again."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_bytes, (pickle.PickleBuffer(self.data),)


def _as_bytes(buffer: Any) -> bytes:
    return buffer if type(buffer) is bytes else whole(memoryview(buffer))


def _lifted(value: object, own: int, done: dict[int, _Lifted]) -> object:
    # pickle copies bytes into its stream; those that stand directly in the arguments need not be.
    # No deeper: what the user can refer to must be pickled as the object that it is.
    kind = type(value)
    if kind is bytes and len(cast(bytes, value)) >= SEGMENT_FROM:
        return done.setdefault(id(value), _Lifted(cast(bytes, value)))
    if own and kind is tuple:
        return tuple(_lifted(item, own - 1, done) for item in cast("tuple[object, ...]", value))
    if own and kind is dict:
        items = cast("dict[object, object]", value).items()
        return {k: _lifted(v, own - 1, done) for k, v in items}
    return value
