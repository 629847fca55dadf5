"""Stacks of ranks, from the dumps of py-spy: parsed, cut, grouped, described. No I/O.

A thread's stack has the user's program in its middle. Around it are the frames that run it (the
interpreter's start, `threading`, the runtime). Inside it are the runtime again, where it waits for
an answer, or the standard library, where it waits for a lock. Only the middle distinguishes ranks,
so only the middle is kept and compared. A thread without one is left out, and so is a rank's IO
thread.

Frames are outermost first, as in a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from monarch._src.failures.endpoint_text import endpoint_text
from monarch._src.failures.report import at_text
from monarch._src.shape import Extent
from monarch._src.wire.messages import (
    EndpointWait,
    MeshStacks,
    StackFrame,
    StackGroup,
    ThreadStack,
)

MAIN = "MainThread"
IO_THREADS = "monarch-"
MOST_FRAMES = 100  # of a deep recursion, half of this from each end
MOST_PLACES = 12


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    thread_name: str | None = None
    os_thread_id: int | None = None


_decoder = msgspec.json.Decoder(list[_Thread])


# The owner of a file is told by its path: ranks may use other interpreters than this process.
_RUNTIME = ("/monarch/_src/", "/monarch_jupyter/")
_LIBRARY = re.compile(r"/lib(?:64)?/python3[.\d]*t?/")
_PACKAGES = ("/site-packages/", "/dist-packages/")
_START = ("<frozen ", "<string>")
_FUTURE = "/actor/future.py"
_SLEEP = "/actor/run/interruptible_sleep.py"
SLEEP = "time.sleep"
_OF_RUNTIME = ("an answer", "a message")
_LOCK = ("threading.Lock.", "threading.RLock.")  # their `acquire` has no frame


def is_runtime(frame: StackFrame) -> bool:
    """Whether the frame belongs to the runtime, or to the notebook's code on a rank."""
    return any(part in frame.filename for part in _RUNTIME)


def is_library(frame: StackFrame) -> bool:
    """Whether the frame belongs to the standard library, or to the interpreter's start."""
    name = frame.filename
    if name.startswith(_START):
        return True
    return _LIBRARY.search(name) is not None and not any(part in name for part in _PACKAGES)


@dataclass(frozen=True)
class Queue:
    """Calls of the endpoints `behind` that are queued behind a wait of `actor`.`endpoint`."""

    actor: str
    endpoint: str
    what: str
    behind: tuple[str, ...]
    is_local: bool


@dataclass(frozen=True)
class Look:
    """The stacks of one rank, with a description.

    `waited_s`: for each thread, the seconds since its wait began, None if that is not known.
    `queues`: the calls that are queued behind waits; `queued`: their numbers, and these times.
    """

    rank: int
    what: str
    threads: tuple[ThreadStack, ...] = ()
    for_s: float | None = None
    waited_s: tuple[float | None, ...] = ()
    queues: tuple[Queue, ...] = ()
    queued: tuple[tuple[int, float | None], ...] = ()


def parse(dump: bytes) -> list[ThreadStack]:
    """The threads in the output of `py-spy dump --json`, the main one first.

    Raises:
        ValueError: the input is no such output.
    """
    found: list[tuple[int, ThreadStack]] = []
    for thread in _decoder.decode(dump):
        frames = tuple(StackFrame(f.name, f.filename, f.line) for f in reversed(thread.frames))
        name = thread.thread_name or f"thread {thread.os_thread_id or '?'}"
        if name.startswith(IO_THREADS):  # the rest names the rank and would make every stack unique
            name = name.partition("-")[0] + "-" + name.split("-")[1]
        place = 0 if name == MAIN else thread.os_thread_id or 1
        found.append((place, ThreadStack("" if name == MAIN else name, False, frames)))
    return [thread for _, thread in sorted(found, key=lambda pair: pair[0])]


def of_user(threads: Iterable[ThreadStack]) -> list[ThreadStack]:
    """The user's part of each thread; threads that have none are left out."""
    parts = (_of_user(thread) for thread in threads)
    return [thread for thread in parts if thread is not None]


def _of_user(thread: ThreadStack) -> ThreadStack | None:
    if thread.name.startswith(IO_THREADS):
        return None
    around = [is_runtime(frame) or is_library(frame) for frame in thread.frames]
    if all(around):
        return None
    first = around.index(False)
    last = len(around) - around[::-1].index(False)
    inner = thread.frames[last:]
    entered = next((at for at, frame in enumerate(inner) if is_runtime(frame)), None)
    end = len(thread.frames) if entered is None else last + entered
    frames = tuple(f for f in thread.frames[first:end] if not is_runtime(f))
    return ThreadStack(thread.name, *_runtime_wait(thread.frames[end:], frames))


def _runtime_wait(
    runtime: Sequence[StackFrame], frames: tuple[StackFrame, ...]
) -> tuple[bool, tuple[StackFrame, ...], str]:
    """Whether these frames of the runtime wait for an answer, the user's, and another wait.

    A thread may also compute in the runtime: it pickles an argument, or unpickles an answer.
    """
    if any(frame.filename.endswith(_SLEEP) for frame in runtime):
        return False, frames, SLEEP
    in_future = [frame for frame in runtime if frame.filename.endswith(_FUTURE)]
    decodes = any(frame.name.endswith("_result") for frame in in_future)
    return bool(in_future) and not decodes, frames, ""


def bounded(threads: Iterable[ThreadStack]) -> tuple[ThreadStack, ...]:
    """The same threads; of a deep recursion only both ends."""
    half = MOST_FRAMES // 2
    found: list[ThreadStack] = []
    for thread in threads:
        frames = thread.frames
        if len(frames) > MOST_FRAMES:
            gap = StackFrame(f"... {len(frames) - 2 * half} more frames ...", "", 0)
            frames = (*frames[:half], gap, *frames[-half:])
        found.append(ThreadStack(thread.name, thread.waits, frames, thread.awaits, thread.is_task))
    return tuple(found)


def look(
    rank: int,
    threads: Sequence[ThreadStack],
    doing: str,
    otherwise: str,
    *,
    full: bool,
    waits: Sequence[EndpointWait] = (),
) -> Look:
    """Describe the position of a rank.

    `doing` is the endpoint on its status board, if any; `otherwise` is the description if no thread
    is in user code; `waits` are its endpoints that wait, longest first.
    """
    pairs = [_with_wait(thread, waits) for thread in of_user(threads)]
    own = [thread for thread, _ in pairs]
    # The thread that runs the endpoint of the status board, if it is found; else the first.
    inside = next((t for t in own if doing and _runs(t, doing)), own[0] if own else None)
    what = (_awaiting(waits) or otherwise) if inside is None else f"in {_innermost(inside)}"
    if inside is not None:
        what += _wait_text(inside)
    if full:
        pairs = [(thread, None) for thread in threads]
    pairs += [
        (ThreadStack(_name_of(wait), False, wait.frames, wait.what, True), wait.waited_s)
        for wait in waits
        if wait.frames
    ]
    queues = [wait for wait in waits if wait.what and wait.behind]
    return Look(
        rank,
        what,
        bounded(thread for thread, _ in pairs),
        waits[0].for_s if waits else None,
        tuple(waited_s for _, waited_s in pairs),
        tuple(_queue(wait) for wait in queues),
        tuple((wait.queued, wait.waited_s) for wait in queues),
    )


def _with_wait(
    thread: ThreadStack, waits: Sequence[EndpointWait]
) -> tuple[ThreadStack, float | None]:
    """The thread with the object of its wait, and the time, if its process has named them."""
    for wait in waits:
        if wait.what and not wait.frames and wait.thread == thread.name and _fits(thread, wait):
            named = ThreadStack(thread.name, thread.waits, thread.frames, wait.what)
            return named, wait.waited_s
    return thread, None


def _fits(thread: ThreadStack, wait: EndpointWait) -> bool:
    """Whether the thread still is in that wait: its process was asked before the stack was read."""
    if thread.waits:
        return wait.what.startswith(_OF_RUNTIME)
    if thread.awaits == SLEEP:
        return wait.what.startswith(SLEEP)
    if wait.what.startswith(_LOCK):
        return not is_library(thread.frames[-1])
    return not wait.what.startswith((*_OF_RUNTIME, SLEEP)) and is_library(thread.frames[-1])


def _wait_text(thread: ThreadStack) -> str:
    """The wait of a thread for the headline, which ranks that wait for different peers share."""
    if thread.waits:
        kind = "a message to a port" if thread.awaits.startswith("a message") else "an answer"
        return f", waiting for {kind}"
    return f", in {thread.awaits}" if thread.awaits else ""


def _awaiting(waits: Sequence[EndpointWait]) -> str:
    """`in Trainer.step, awaiting an answer from ...`; empty if no endpoint awaits."""
    awaiting = [wait for wait in waits if wait.frames]
    if not awaiting:
        return ""
    first = awaiting[0]
    more = f", and {len(awaiting) - 1} more" if len(awaiting) > 1 else ""
    return f"in {_name_of(first)}, awaiting {first.what}{more}"


def _name_of(wait: EndpointWait) -> str:
    """`Trainer.step`; the place of code that is in no function, as in a cell of a notebook."""
    outermost = wait.frames[0]
    if outermost.name == "<module>":
        return f"{outermost.filename.rpartition('/')[2]}, line {outermost.line}"
    return endpoint_text(wait.actor, wait.endpoint)


def _queue(wait: EndpointWait) -> Queue:
    return Queue(wait.actor, wait.endpoint, wait.what, tuple(wait.behind), wait.is_local)


def queue_text(queue: Queue, queued: Sequence[tuple[int, float | None]]) -> str:
    """`2 messages (put) are queued behind Box.get, which waits for ...`; a deadlock is named.

    `queued`: for each rank, the number of messages, and the seconds of the wait, if known.
    """
    behind = " and ".join(queue.behind)
    counts = [count for count, _ in queued]
    least, most = min(counts), max(counts)
    count = str(most) if least == most else f"{least} to {most}"
    are = "is" if most == 1 else "are"
    messages = "message" if most == 1 else "messages"
    since = time_text([known for _, known in queued if known is not None])
    said = (
        f"{count} {messages} ({behind}) {are} queued behind "
        f"{endpoint_text(queue.actor, queue.endpoint)}, which waits for {queue.what}{since}"
    )
    if not queue.is_local:
        return said
    it = behind if len(queue.behind) == 1 else "one of them"
    return (
        f"{said}. The actor runs one call at a time: if {it} has to end this wait, it is a "
        f"deadlock; @concurrent_endpoint on {queue.endpoint} lets them overlap (in an async actor)"
    )


def _runs(thread: ThreadStack, doing: str) -> bool:
    endpoint = doing.rpartition(".")[2]
    return any(frame.name.rpartition(".")[2] == endpoint for frame in thread.frames)


def _innermost(thread: ThreadStack) -> str:
    own = [frame for frame in thread.frames if not is_library(frame)]
    name = own[-1].name
    if name == "<module>":
        return f"{own[-1].filename.rpartition('/')[2]}, line {own[-1].line}"
    return name


def group(mesh: int, name: str, sizes: Mapping[str, int], looks: Iterable[Look]) -> MeshStacks:
    """Group the ranks of one mesh by equal stacks, the largest group first."""
    parts: dict[object, list[Look]] = {}
    for one in sorted(looks, key=lambda one: one.rank):
        parts.setdefault((one.what, one.threads, one.queues), []).append(one)
    groups = [_group(alike) for alike in parts.values()]
    found = sorted(groups, key=lambda g: -len(g.ranks))
    return MeshStacks(mesh, name, list(sizes), list(sizes.values()), found)


def _group(alike: Sequence[Look]) -> StackGroup:
    """The group of ranks that differ only in times and numbers."""
    first = alike[0]
    return StackGroup(
        first.what,
        first.threads,
        [one.rank for one in alike],
        [one.for_s for one in alike if one.for_s is not None],
        tuple(
            queue_text(queue, [one.queued[at] for one in alike])
            for at, queue in enumerate(first.queues)
        ),
        [
            [known for one in alike if (known := one.waited_s[at]) is not None]
            for at in range(len(first.waited_s))
        ],
    )


# --- in words -------------------------------------------------------------------------------------


def headline(mesh: MeshStacks) -> str:
    """`62 in all_reduce, 2 in DataLoader.__next__: gpus=3, gpus=17`: the odd ones are named."""
    tally: dict[str, list[int]] = {}
    for group_ in mesh.groups:
        tally.setdefault(group_.what, []).extend(group_.ranks)
    ranked = sorted(tally.items(), key=lambda item: -len(item[1]))
    if not ranked:
        return "no ranks"
    said = [f"{len(ranked[0][1])} {ranked[0][0]}"]
    odd = [f"{len(ranks)} {what}: {places(mesh, ranks)}" for what, ranks in ranked[1:]]
    return ", ".join([*said, "; ".join(odd)] if odd else said)


class _Sized(Protocol):
    name: str
    labels: list[str]
    sizes: list[int]


def places(mesh: _Sized, ranks: Sequence[int]) -> str:
    """`gpus=3, gpus=17`, runs of neighbours as `gpus=4..6`; bounded."""
    if not mesh.labels:
        return mesh.name
    extent = Extent(mesh.labels, mesh.sizes)
    if len(mesh.labels) > 1:
        shown = [at_text(dict(extent.point_of_rank(rank))) for rank in sorted(ranks)]
    else:
        runs: list[tuple[int, int]] = []
        for at in sorted(ranks):
            if runs and runs[-1][1] == at - 1:
                runs[-1] = (runs[-1][0], at)
            else:
                runs.append((at, at))
        dim = mesh.labels[0]
        shown = [f"{dim}={a}" if a == b else f"{dim}={a}..{b}" for a, b in runs]
    more = len(shown) - MOST_PLACES
    return ", ".join(shown[:MOST_PLACES]) + (f" and {more} more" if more > 0 else "")


def text(mesh: MeshStacks) -> str:
    """The headline, then each group with the stacks that its ranks share."""
    count = sum(len(g.ranks) for g in mesh.groups)
    lines = [f"{mesh.name}, {count} rank{'s' * (count != 1)}: {headline(mesh)}"]
    for group_ in mesh.groups:
        if not group_.threads:
            continue
        where = f"{places(mesh, group_.ranks)}{time_text(group_.for_s)}"
        lines += ["", f"{len(group_.ranks)} {group_.what}: {where}"]
        for at, thread in enumerate(group_.threads):
            waited_s = group_.waited_s[at] if at < len(group_.waited_s) else ()
            lines += [f"  {line}" for line in thread_lines(thread, waited_s)]
        lines += [f"  {note}" for note in group_.notes]
    return "\n".join(lines)


def thread_lines(thread: ThreadStack, waited_s: Sequence[float] = ()) -> list[str]:
    """A thread as in a traceback; begins with its name unless it is the main thread."""
    lines = [f"{'task' if thread.is_task else 'thread'} {thread.name}"] if thread.name else []
    lines += [frame_line(frame) for frame in thread.frames]
    if thread.waits or thread.awaits:
        lines.append(f"waits for {thread.awaits or 'an answer'}{time_text(waited_s)}")
    return lines


def time_text(for_s: Sequence[float]) -> str:
    """`, for 12 s`, `, for 3 s to 5 min`; empty without any."""
    if not for_s:
        return ""
    least, most = _seconds(min(for_s)), _seconds(max(for_s))
    return f", for {least}" if least == most else f", for {least} to {most}"


def _seconds(number: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if number >= 2 * size:
            return f"{number / size:.0f} {unit}"
    return f"{number:.1f} s" if number < 10 else f"{number:.0f} s"


def frame_line(frame: StackFrame) -> str:
    """`File "train.py", line 7, in Trainer.step`."""
    if not frame.filename:
        return frame.name
    return f'File "{frame.filename}", line {frame.line}, in {frame.name}'
