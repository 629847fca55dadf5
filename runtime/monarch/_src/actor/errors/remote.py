"""Failures between processes: described where an exception was raised, rebuilt at the caller.

The description of a failure is plain data (`RankFailure`). The exception itself travels beside it
in a separate pickle, so that the description survives if the exception cannot be rebuilt. The size
of a description is bounded, since it also travels in the bounded headers of messages.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from monarch._src.actor.errors.traceback_frames import MOST_FRAMES, frames_of
from monarch._src.actor.serialize import pack_value, unpack_value
from monarch._src.errors import ActorError, SupervisionError, death_error
from monarch._src.failures.report import FailureKind, OutOfMemory, RankFailure
from monarch._src.failures.traceback import FIRST_FRAMES, LAST_FRAMES, Behind, held_by
from monarch._src.system.process import memory_limit, rss_bytes
from monarch._src.wire.frames import Payload, carried
from monarch._src.wire.messages import DIED
from monarch._src.wire.msgpack_text import pack, unpacker

_NOTHING_TYPED = "EOF when reading a line"  # raised by `input`
# Added to the EOFError of code that waits for typed input on a rank.
_NO_KEYBOARD = (
    "a rank has no keyboard: ask in the client, and pass the answer as an argument; or "
    "stop at breakpoint(), whose console takes what you type"
)
LONGEST_TEXT = 1 << 19  # characters of a message, and of a traceback
# Exceptions behind one that are described, and the characters of each.
MOST_BEHIND = 8
LONGEST_BEHIND = 4096
# Exceptions of a chain that stay in the text of a traceback; half of them from each end.
MOST_IN_CHAIN = 200
_unpack_description = unpacker(RankFailure)


def _cut_short(exception: BaseException) -> None:
    """Keep the two ends of each traceback: an endless recursion may have left no memory for more.

    Drops the entries between, without listing them. Chains of exceptions, which each level of a
    recursion may have extended, are cut alike: formatting one exception takes a millisecond.
    """
    _cut_chain(exception)
    behind: list[BaseException | None] = [exception]
    seen: set[int] = set()
    while behind and len(seen) < MOST_FRAMES:
        one = behind.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            _cut(one.__traceback__)
            behind += [one.__context__, one.__cause__, *held_by(one)]


def _cut_chain(first: BaseException) -> None:
    half = MOST_IN_CHAIN // 2
    chain, seen = [first], {id(first)}
    while (one := _before(chain[-1])) is not None and id(one) not in seen:
        seen.add(id(one))
        chain.append(one)
    if len(chain) > MOST_IN_CHAIN:
        head, tail = chain[half - 1], chain[-half]
        if head.__cause__ is not None:
            head.__cause__, head.__context__ = tail, None
        else:
            head.__context__ = tail


def _before(exception: BaseException) -> BaseException | None:
    """The previous exception of the chain, as a traceback shows it."""
    if exception.__cause__ is not None or exception.__suppress_context__:
        return exception.__cause__
    return exception.__context__


def _cut(first: TracebackType | None) -> None:
    half = MOST_FRAMES // 2
    for _ in range(half - 1):
        first = first and first.tb_next
    last = first
    for _ in range(half):
        last = last and last.tb_next
    if first is None or last is None:
        return
    rest = first  # moves along, at a fixed distance before `last`
    while last.tb_next is not None:
        rest, last = rest.tb_next or rest, last.tb_next
    if rest is not first:
        first.tb_next = rest.tb_next


def describe(
    exception: BaseException,
    *,
    mesh_name: str,
    rank: int,
    point: dict[str, int],
    actor_class: str,
    endpoint: str | None,
    host: str,
    kind: FailureKind,
) -> RankFailure:
    """Describe an exception that escaped user code here.

    Cuts overlong tracebacks and chains of the exception itself.
    """
    _cut_short(exception)
    return RankFailure(
        mesh_name=mesh_name,
        rank=rank,
        point=point,
        actor_class=actor_class,
        endpoint=endpoint,
        host=host,
        pid=os.getpid(),
        kind=kind,
        exception_type=type(exception).__name__,
        message=_text_of(exception),
        frames=frames_of(exception.__traceback__),
        traceback=_bounded("".join(traceback.format_exception(exception))),
        memory=_memory_of(exception),
        behind=tuple(islice(_chained(exception, {id(exception)}), MOST_BEHIND)),
    )


def without_keyboard(failure: RankFailure) -> str:
    """The message of an `EOFError` in a proc, with a hint if the code waited for typed input."""
    said, last = failure.message, failure.frames[-1:]
    if said != _NOTHING_TYPED and not any(Path(f.filename).stem == "getpass" for f in last):
        return said
    return "; ".join(filter(None, (said, _NO_KEYBOARD)))


def _chained(exception: BaseException, seen: set[int]) -> Iterator[Behind]:
    """The members of an exception group, then the chained exceptions."""
    if isinstance(exception, (ActorError, SupervisionError)):
        return  # its text includes the chain
    previous: list[tuple[Literal["from", "during", "in"], BaseException]]
    previous = [("in", one) for one in held_by(exception)]
    if exception.__cause__ is not None:
        previous.append(("from", exception.__cause__))
    elif not exception.__suppress_context__:
        context = exception.__context__
        # Without a traceback, it is the failure that a `__supervise__` hook was called with.
        if context is not None and context.__traceback__ is not None:
            previous.append(("during", context))
    for how, one in previous:
        if id(one) in seen:
            continue
        seen.add(id(one))
        frames = frames_of(one.__traceback__)
        if len(frames) > FIRST_FRAMES + LAST_FRAMES:
            frames = frames[:FIRST_FRAMES] + frames[-LAST_FRAMES:]
        yield Behind(how, type(one).__name__, _bounded(_text_of(one), LONGEST_BEHIND), frames)
        yield from _chained(one, seen)


def _memory_of(exception: BaseException) -> OutOfMemory | None:
    """The details of an out-of-memory exception; None for any other."""
    if isinstance(exception, MemoryError):
        return OutOfMemory("python", memory_limit(), rss_bytes(os.getpid()) or None)
    # torch raises a RuntimeError of that name for CUDA; older versions are recognized by text.
    if isinstance(exception, RuntimeError) and (
        type(exception).__name__ == "OutOfMemoryError"
        or "CUDA out of memory" in _text_of(exception)
    ):
        return OutOfMemory("cuda")
    return None


def _text_of(exception: BaseException) -> str:
    try:
        return _bounded("\n".join([str(exception), *getattr(exception, "__notes__", ())]))
    except Exception as error:
        return f"<its text could not be made: {type(error).__name__}>"


def _bounded(text: str, longest: int = LONGEST_TEXT) -> str:
    left_out = len(text) - longest
    if left_out <= 0:
        return text
    half = longest // 2
    return f"{text[:half]}\n... {left_out:,} characters are left out ...\n{text[-half:]}"


class ForwardedError(Exception):
    """The error of another actor, raised by one that has called it for its own caller.

    The caller gets the failure of the actor that was called.
    """

    def __init__(self, failure: RankFailure, exception: BaseException | None) -> None:
        super().__init__(str(exception or failure.what))
        self.failure = failure
        self.exception = exception


def pack_failure(failure: RankFailure, exception: BaseException | None) -> Payload:
    """A failure as the payload of a Reply: the description, and the exception if it pickles."""
    pickled = b""
    if exception is not None:
        try:
            payload = pack_value(exception)
            if not payload.buffers:
                pickled = bytes(payload.body)
        except Exception:
            pickled = b""  # the description is sent anyway
    return Payload(pack((pack(failure), pickled)))


def unpack_failure(payload: Payload) -> tuple[RankFailure, Callable[[], BaseException | None]]:
    """The failure, and a function that rebuilds the exception, or returns None if it cannot.

    Rebuilding runs user code, so only the thread that reads the error does it.
    """
    story, pickled = msgspec.msgpack.decode(carried(payload).body, type=tuple[bytes, bytes])

    def exception() -> BaseException | None:
        try:
            rebuilt = unpack_value(Payload(pickled)) if pickled else None
        except Exception:
            return None
        return rebuilt if isinstance(rebuilt, BaseException) else None

    return _unpack_description(story), exception


def pack_exception(exception: BaseException) -> Payload:
    """Pickle an exception that is raised unchanged; one that cannot be pickled is sent as text."""
    try:
        return pack_value(exception)
    except Exception:
        return pack_value(ActorError(None, f"{type(exception).__name__}: {_text_of(exception)}"))


def unpack_exception(payload: Payload) -> BaseException:
    """Unpickle the result of `pack_exception`."""
    try:
        exception = unpack_value(payload)
    except Exception as error:
        return ActorError(None, f"an exception arrived that cannot be rebuilt here: {error}")
    return exception if isinstance(exception, BaseException) else ActorError(None, repr(exception))


def error_for(
    status: int, failures: list[RankFailure], exception: BaseException | None
) -> ActorError | SupervisionError:
    """The error to raise to a caller. `failures` may grow later."""
    if status == DIED:
        return death_error(failures)
    error = ActorError(exception, failures=failures)
    error.__cause__ = exception
    return error
