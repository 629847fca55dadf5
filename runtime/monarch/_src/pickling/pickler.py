"""User data <-> bytes: pickle protocol 5, by reference or by value. No I/O.

Measured on one int argument: `pickle.dumps` 0.16 us, a cloudpickle pickler 1.4 us. So arguments
made only of builtin types and arrays use the plain pickler. All others use one that also knows
functions and classes that the receiver cannot import (those of `__main__` and of cells, lambdas,
closures). Functions that travel by value take the source text of their files along, so that
tracebacks and debuggers in the receiver can show it.

A payload has the values at the time of the call. Memory that may still change is copied once; a
caller that sends at once may ask for `loose` memory, and copies it to its destination itself.
Memory that cannot change is not copied: that of `bytes`, and the pieces of a `FrozenBuffer`. An
array that is only marked read-only has an owner that can change it.

Classes, the standard library's wrappers of functions and names of types, code objects and torch's
memory are reduced here and in the modules beside this one, independently of cloudpickle's release.
cloudpickle reduces functions, and everything else.

Body: a pickle; or, if sources travel along, `S`, a u32 (big endian) and that many bytes of pickled
`{filename: source}`, then the pickle. Buffers of `SEGMENT_FROM` bytes and more travel out of band;
writable ones are copied first, since sending may go on after the call has returned.
"""

from __future__ import annotations

import builtins
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Mapping
from enum import EnumMeta
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from monarch._src.pickling import annotations, main_names
from monarch._src.pickling.annotations import neighbours
from monarch._src.pickling.array_reductions import (
    Memory,
    reduce_array,
    reduce_storage,
    reduce_tensor,
    substitute_of,
)
from monarch._src.pickling.class_objects import (
    is_of_a_statement,
    reduce_class,
    reduce_member,
    travels_by_value,
)
from monarch._src.pickling.code_objects import reduce_code
from monarch._src.pickling.wrappers import (
    INHERITED,
    REDUCERS,
    is_single_dispatch,
    reduce_single_dispatch,
)
from monarch._src.wire.buffers import Buffer as WriteBuffer
from monarch._src.wire.buffers import FrozenBuffer, whole
from monarch._src.wire.frames import Buffer, Payload, carried
from monarch._src.wire.memory_copies import copied
from monarch._src.wire.segment_refs import SEGMENT_FROM

_dumps, _loads = pickle.dumps, pickle.loads
LARGEST_PLAIN = 64
_SOURCES = ord("S")
_ATOMS = frozenset({int, float, str, bool, type(None), complex})

SourceOf = Callable[[str], "str | None"]
KeepSources = Callable[[Mapping[str, str]], None]
ClassOf = Callable[[int], "type[Any]"]


def _keeper(
    buffers: list[Buffer],
    fixed: Mapping[int, pickle.PickleBuffer],
    loose: list[int] | None,
    late: Mapping[int, Memory] | None = None,
) -> Callable[[pickle.PickleBuffer], bool]:
    """The `buffer_callback` of pickle: returns whether to write a buffer into the stream.

    If there is a list `loose`, no buffer is copied. `late`: buffers, by their ids, whose content is
    known only after pickling; they get placeholders.
    """

    def keep(buffer: pickle.PickleBuffer) -> bool:
        if late and id(buffer) in late:
            buffers.append(b"")
            return False
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous: pickle copies it in band
            return True
        if raw.nbytes < SEGMENT_FROM:
            return True
        # The message may leave long after the call, if its receiver is still starting.
        unchanging = id(buffer) in fixed or _is_of_bytes(raw)
        if loose is not None and not unchanging:
            loose.append(len(buffers))
            unchanging = True  # the caller copies it to its destination
        buffers.append(raw if unchanging else copied(raw))
        return False

    return keep


class _Pieces(list[Any]):
    """The file that a pickler writes to. Unlike `io.BytesIO` it does not copy large objects."""

    __slots__ = ()
    write = list[Any].append

    def joined(self) -> bytes:
        """All that was written, in memory of exactly that size."""
        return b"".join(
            piece.raw() if type(piece) is pickle.PickleBuffer else piece for piece in self
        )


class _Pickler(cloudpickle.Pickler):  # pyright: ignore[reportUntypedBaseClass]
    """cloudpickle's pickler, with our reductions; records the files that code came from."""

    def __init__(
        self,
        file: _Pieces,
        buffers: list[Buffer],
        loose: list[int] | None = None,
        *,
        defines: bool = False,
    ) -> None:
        self._fixed: dict[int, pickle.PickleBuffer] = {}
        self.late: dict[int, Memory] = {}
        keep = _keeper(buffers, self._fixed, loose, self.late)
        super().__init__(file, protocol=5, buffer_callback=keep)  # pyright: ignore[reportUnknownMemberType]
        self.files: set[str] = set()
        self._storages: dict[int, Memory] = {}
        self._defines = defines

    def reducer_override(self, obj: Any) -> Any:
        kind = type(cast(object, obj))
        reducer = REDUCERS.get(kind)
        if reducer is not None:
            return reducer(obj) or NotImplemented
        if kind is FunctionType:
            return self._reduce_function(obj)
        if issubclass(kind, type):
            return self._reduce_class(obj)
        if kind is CodeType:
            self.files.add(obj.co_filename)
            return reduce_code(obj)
        module = kind.__module__
        if module in _OF_NOTEBOOKS and kind.__name__ in _EXITS:
            return getattr, (builtins, "exit")
        if kind is FrozenBuffer or kind is WriteBuffer:
            reduced = obj.__reduce_ex__(5)
            self._fixed.update((id(piece), piece) for piece in reduced[1])
            return reduced
        if module == "torch.storage" and kind.__name__ in ("TypedStorage", "UntypedStorage"):
            return self._reduce_storage(reduce_storage(obj, self._storages))
        if module == "torch" and kind.__name__ == "Tensor":
            return self._reduce_storage(reduce_tensor(obj, self._storages))
        if isinstance(obj, _DESCRIPTORS) and kind not in self.dispatch_table:
            return next(reducer for base, reducer in INHERITED if isinstance(obj, base))(obj)
        if issubclass(kind, ModuleType) and kind is not ModuleType and _is_imported(obj):
            return importlib.import_module, (obj.__name__,)
        if isinstance(kind, EnumMeta) and travels_by_value(kind):
            return reduce_member(obj) or NotImplemented
        if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not _REDUCE_EX:
            return reduce_array(obj, kind) or self._reduce_as_it_says(obj, kind)
        return NotImplemented

    def _reduce_class(self, cls: type[Any]) -> Any:
        if cls.__module__.startswith("monarch.") and type(cls) is type:
            # An error has the name of a public module, which need not have been imported here; if
            # cloudpickle did not find it there, the class would travel by value.
            importlib.import_module(cls.__module__)
        if travels_by_value(cls):
            return reduce_class(cls, defines=self._defines)
        if is_of_a_statement(cls):
            return NotImplemented
        return super().reducer_override(cls)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]

    def _reduce_function(self, function: FunctionType) -> Any:
        if function.__name__ == "open" and function.__globals__.get("__name__") == _OPENS:
            return getattr, (builtins, "open")
        substitute = substitute_of(function)
        if substitute is not None:
            return substitute, ()
        if is_single_dispatch(function):
            return reduce_single_dispatch(function) or NotImplemented
        reduced: Any = super().reducer_override(function)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        if reduced is NotImplemented:
            return reduced
        self.files.add(function.__code__.co_filename)
        make, made_of, (attributes, slots), _, _, fill = reduced
        # The cells themselves, so that functions that share a variable share it in the receiver
        # too; cloudpickle makes a new cell for each function.
        slots["__closure__"] = None
        slots["__globals__"] = {**neighbours(function), **slots["__globals__"]}
        state = attributes, slots
        if main_names.has(function):
            state, fill = (state, fill), _fill_function
        return make, (*made_of[:4], function.__closure__), state, None, None, fill

    def _reduce_storage(self, reduced: Any) -> Any:
        if reduced is None:
            return NotImplemented
        for memory in reduced[1]:
            if type(memory) is Memory and memory.low is not None and memory.pieces is None:
                self.late.update((id(piece), memory) for piece in memory.make_pieces())
        return reduced

    def _reduce_as_it_says(self, obj: Any, kind: type[Any]) -> Any:
        """Use the object's own reduction, but refuse a name of `__main__`, which is not shared."""
        if kind in self.dispatch_table or getattr(obj, "__module__", None) != main_names.MAIN:
            return NotImplemented
        reduced = obj.__reduce_ex__(5)
        if isinstance(reduced, str):
            raise TypeError(
                f"cannot pickle {reduced!r}, a {kind.__qualname__} pickled as a name in "
                "`__main__`; put it into a module that the other process can import"
            )
        return reduced

    def settle(self, buffers: list[Buffer], loose: list[int] | None) -> None:
        """After pickling: put the used parts of storages into their places."""
        held = [at for at, buffer in enumerate(buffers) if buffer == b"" and type(buffer) is bytes]
        settled: list[Buffer] = []
        for memory in dict.fromkeys(self.late.values()):
            settled += memory.settle()
        for at, piece in zip(held, settled, strict=True):
            if loose is not None and type(piece) is memoryview:
                loose.append(at)
                buffers[at] = piece
            else:
                buffers[at] = copied(piece) if type(piece) is memoryview else piece
        if loose is not None:
            loose.sort()


class SharedClasses:
    """Classes by value to which several payloads refer by their numbers, so each travels once.

    `payloads` has one for each class, in the order of the numbers.
    """

    def __init__(self, source_of: SourceOf | None = None) -> None:
        self.payloads: list[Payload] = []
        self._source_of = source_of
        self._numbers: dict[int, int | None] = {}  # by id; None: the receiver can import the class
        self._known: list[type[Any]] = []  # keeps the ids valid

    def number_of(self, cls: type[Any]) -> int | None:
        """The number of a class; None if it travels as a name.

        Raises the exceptions of its reduction.
        """
        if id(cls) not in self._numbers:
            number = None
            if travels_by_value(cls):
                number = len(self.payloads)
                self.payloads.append(dumps(cls, self._source_of))
            self._numbers[id(cls)] = number
            self._known.append(cls)
        return self._numbers[id(cls)]


class _SharingPickler(_Pickler):
    """Writes the number of a class that travels by value in place of the class."""

    shared: SharedClasses

    def persistent_id(self, obj: Any) -> int | None:
        return self.shared.number_of(obj) if isinstance(obj, type) else None


class _SharingUnpickler(pickle.Unpickler):
    """Reads the payloads of such a pickler."""

    class_of: ClassOf

    def persistent_load(self, pid: Any) -> type[Any]:
        return self.class_of(pid)


def _is_imported(module: ModuleType) -> bool:
    """Whether the receiver gets this module by its name.

    cloudpickle knows only modules of Python's own class, and torch.backends.cudnn has another.
    """
    return sys.modules.get(module.__name__) is module


def _fill_function(function: FunctionType, state: Any) -> None:
    """Set the attributes of a function of `__main__`, and enter its name there."""
    attributes, fill = state
    fill(function, attributes)
    main_names.enter(function.__name__, function)


def _can_be_sent(thing: Any) -> bool:
    try:
        _Pickler(_Pieces(), [], []).dump(thing)  # pyright: ignore[reportUnknownMemberType]
    except Exception:
        return False
    return True


annotations.can_be_sent = _can_be_sent
_REDUCE_EX = object.__reduce_ex__
_DESCRIPTORS = tuple(base for base, _ in INHERITED)

# Functions that a notebook substitutes for Python's, by class. `exit` there ends a kernel, and
# would take all of it along; `open` refuses its pipes, and would take the text of IPython.
_EXITS = ("ExitAutocall", "ZMQExitAutocall")
_OF_NOTEBOOKS = ("IPython.core.autocall", "ipykernel.zmqshell")
_OPENS = "IPython.core.interactiveshell"


def _is_of_bytes(raw: memoryview) -> bool:
    """Whether this is memory of a `bytes`, possibly through views and numpy's arrays."""
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
_BULK = 1 << 16  # bytes from which on pickle passes objects to its file without copying them


def _which(value: object, depth: int = 3) -> int:
    """The pickler for a value: the full one, the plain one, or the plain one with a file."""
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
    """`dumps((args, kwargs), own=2)` if they are atoms, as most are; otherwise None."""
    for value in args:
        if type(value) not in _ATOMS:
            return None
    return None if kwargs else Payload(_dumps((args, kwargs), 5))


def dumps(
    value: object,
    source_of: SourceOf | None = None,
    own: int = 0,
    *,
    loose: bool = False,
    defines: bool = False,
    shared: SharedClasses | None = None,
) -> Payload:
    """Pickle for another process. Later changes to `value` do not change the payload.

    Args:
        source_of: returns the text of a file to send along, if any.
        own: how many levels of tuples and dicts, from the outside, belong to the caller: nothing
            else refers to them, so large `bytes` in them can be taken out of band.
        loose: the payload may refer to memory that still changes; see `Payload.loose`.
        defines: receivers that know a class in it take over a changed definition; see
            `pickling.definitions`.
        shared: takes in the classes that travel by value; the payload has their numbers only, and
            `loads` needs the classes from elsewhere.

    Raises the exceptions of the objects' own reductions (`TypeError`, `pickle.PicklingError`, ...).
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
    if shared is None:
        pickler = _Pickler(file, buffers, changing, defines=defines)
    else:
        pickler = _SharingPickler(file, buffers, changing, defines=defines)
        pickler.shared = shared
    pickler.dump(value)  # pyright: ignore[reportUnknownMemberType]
    if pickler.late:
        pickler.settle(buffers, changing)
    body = file.joined()
    if pickler.files and source_of is not None:
        found = {name: source_of(name) for name in sorted(pickler.files)}
        sources = {name: text for name, text in found.items() if text}
        if sources:
            packed = pickle.dumps(sources, 5)
            body = b"S" + len(packed).to_bytes(4, "big") + packed + body
    return Payload(body, buffers, changing or ())


def is_plain(value: object) -> bool:
    """Whether a value has only builtin types and arrays, which any process can rebuild."""
    return type(value) in _ATOMS or _which(value) != _FULL


def loads(
    payload: Payload,
    keep_sources: KeepSources | None = None,
    class_of: ClassOf | None = None,
) -> Any:
    """Rebuild the value of a payload; sources in it go to `keep_sources` first.

    `class_of`: returns the class of a number of `SharedClasses`.

    Only for known peers: unpickling runs code that the sender chose.
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
    if class_of is None:
        return _loads(body, buffers=buffers)
    unpickler = _SharingUnpickler(io.BytesIO(body), buffers=buffers)
    unpickler.class_of = class_of
    value: Any = unpickler.load()
    return value


def may_import(payload: Payload) -> bool:
    """Whether unpickling a payload may import a module: a plain value names none."""
    body = payload.body
    if len(body) > _LONGEST_PLAIN:
        return True
    # The opcode of all names of modules; other bytes may have its number, which does no harm.
    return _STACK_GLOBAL in (body if type(body) is bytes else bytes(body))


def pickle_in(payload: Payload) -> Buffer:
    """The pickle alone, without sources."""
    body = memoryview(payload.body)
    if len(body) and body[0] == _SOURCES:
        return body[5 + int.from_bytes(body[1:5], "big") :]
    return body


# Opcodes of atoms: the number of bytes that follow, or (negated) the size of the length field.
_FOLLOWED_BY = {
    0x4E: 0, 0x88: 0, 0x89: 0,  # None, True, False
    0x4B: 1, 0x4D: 2, 0x4A: 4, 0x8A: -1,  # int
    0x47: 8,  # float
    0x8C: -1, 0x58: -4, 0x43: -1, 0x42: -4,  # str, bytes
}  # fmt: skip
_FRAMED = 0x95
_STACK_GLOBAL = b"\x93"
_LONGEST_PLAIN = 4096  # bytes; of longer pickles, a turn to import costs nothing


def is_atom(payload: Payload) -> bool:
    """Whether this is the pickle of a single None, bool, int, float, str or bytes.

    Equal ones may stand for each other, because they are immutable. An atom may give False too.
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
    # pickle copies bytes into its stream; `bytes` directly in the arguments need not be copied.
    # It stops there: objects that the user can refer to must keep their identity in the pickle.
    kind = type(value)
    if kind is bytes and len(cast(bytes, value)) >= SEGMENT_FROM:
        return done.setdefault(id(value), _Lifted(cast(bytes, value)))
    if own and kind is tuple:
        return tuple(_lifted(item, own - 1, done) for item in cast("tuple[object, ...]", value))
    if own and kind is dict:
        items = cast("dict[object, object]", value).items()
        return {k: _lifted(v, own - 1, done) for k, v in items}
    return value


def why_not_sent(value: object) -> str | None:
    """Why a call could not carry this value, on one line; None if it could.

    The value is pickled as an answer is, by the runtime's own pickler; large buffers in it are not
    copied.
    """
    try:
        dumps(value, loose=True)
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None
