"""Samples of the stacks of ranks: read from py-spy's output, cut, and counted. No I/O.

py-spy prints a line for each stack: its thread, its frames from the outermost on, and in how many
samples it was seen. Only the user's part of a stack is kept, as in `observe.stacks`. A sample in
which a thread is in none of the user's code counts as `WAITS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from monarch._src.observe.stacks.state.grouping import (
    IO_THREADS,
    MAIN,
    is_library,
    is_runtime,
)
from monarch._src.wire.messages import MeshSamples, SampledStack, StackFrame, ThreadStack

WAITS = StackFrame("waits for calls, or awaits", "", 0)
ACTOR_THREADS = "actor-"
MOST_SECONDS = 300
MOST_RATE = 1000  # in a second
_LINE = re.compile(r"thread \([^()]*\)(?:: (?P<thread>[^;]*))?;(?P<stack>.*) (?P<count>\d+)\Z")
# A native function names its library, or the source file that debug information has.
_NATIVE = re.compile(r"\.so\b|\.dylib\Z|\.(c|cc|cpp|cxx|cu|cuh|h|hpp|pyx|rs|S)\Z")
# A path may have parentheses in it, and so may a name of C++.
_FRAMES = (
    re.compile(r"(?P<name>.*?) \((?P<file>[/<].*?)(?::(?P<line>\d+))?\)\Z"),
    re.compile(r"(?P<name>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)\Z"),
)

Stack = tuple[StackFrame, ...]


def parse(output: str) -> list[tuple[ThreadStack, int]]:
    """The stacks in the output of `py-spy record --format raw --threads`, each with its count.

    Raises:
        ValueError: a line is not of that form.
    """
    found: list[tuple[ThreadStack, int]] = []
    for text in output.splitlines():
        match = _LINE.match(text)
        if match is None:
            raise ValueError(f"{text[:200]!r} is not a stack with a count")
        name = match["thread"] or ""
        frames = tuple(_frame(part) for part in match["stack"].split(";"))
        stack = ThreadStack("" if name == MAIN else name, False, frames)
        found.append((stack, int(match["count"])))
    return found


def _frame(text: str) -> StackFrame:
    for form in _FRAMES:
        match = form.match(text)
        if match is not None:
            return StackFrame(match["name"], match["file"], int(match["line"] or 0))
    return StackFrame(text, "", 0)


def stacks_of_rank(
    sampled: Iterable[tuple[ThreadStack, int]], *, threads: bool
) -> dict[Stack, int]:
    """In how many samples each stack was seen, in the threads that run actors.

    `threads`: in all threads of the user's code. The stack of a thread other than the main one
    begins with a frame that has its name.
    """
    counts: dict[str, dict[Stack, int]] = {}
    for thread, count in sampled:
        if not _is_wanted(thread.name, threads=threads):
            continue
        stack = _of_user(thread.frames) or (WAITS,)
        of_thread = counts.setdefault(thread.name, {})
        of_thread[stack] = of_thread.get(stack, 0) + count
    # A thread that never was in the user's code is of no interest, unless there is no other.
    busy = {name: found for name, found in counts.items() if found.keys() - {(WAITS,)}}
    main = {name: found for name, found in counts.items() if not name}
    result: dict[Stack, int] = {}
    for name, found in (busy or main).items():
        head = (StackFrame(f"thread {name}", "", 0),) if name else ()
        for stack, count in found.items():
            result[(*head, *stack)] = result.get((*head, *stack), 0) + count
    return result


def _of_user(frames: Stack) -> Stack:
    """The user's part of a stack, with the C functions that it calls; empty if there is none."""
    own = [at for at, frame in enumerate(frames) if _is_user(frame)]
    if not own:
        return ()
    inner = range(own[-1] + 1, len(frames))
    end = next((at for at in inner if is_runtime(frames[at])), len(frames))
    return tuple(frame for frame in frames[own[0] : end] if not is_runtime(frame))


def _is_user(frame: StackFrame) -> bool:
    return bool(frame.filename) and not is_runtime(frame) and not is_called(frame)


def is_called(frame: StackFrame) -> bool:
    """Whether the function is of C or of the standard library: its time is that of its caller."""
    return is_library(frame) or _NATIVE.search(frame.filename) is not None


def _is_wanted(name: str, *, threads: bool) -> bool:
    if not name or name.startswith(ACTOR_THREADS):
        return True
    return threads and not name.startswith(IO_THREADS)


def of_mesh(
    mesh: int,
    name: str,
    labels: Sequence[str],
    sizes: Sequence[int],
    by_rank: dict[int, dict[Stack, int]],
    unread: Iterable[tuple[int, str]],
) -> MeshSamples:
    """The samples of some ranks of one mesh, with each frame and each stack once."""
    frames: dict[StackFrame, int] = {}
    stacks: dict[Stack, SampledStack] = {}
    for rank, counts in sorted(by_rank.items()):
        for stack, count in counts.items():
            one = stacks.get(stack)
            if one is None:
                indexes = [frames.setdefault(frame, len(frames)) for frame in stack]
                one = stacks[stack] = SampledStack(indexes, [])
            one.counts.append((rank, count))
    return MeshSamples(
        mesh, name, list(labels), list(sizes), list(frames), list(stacks.values()),
        sorted(by_rank), sorted(unread),
    )  # fmt: skip
