"""Asks host agents about their procs, without a node of its own.

Runs in: the command line; one thread, which blocks. An agent knows an observer from its hello to
the answer. An observer listens nowhere and leaves nothing behind. An agent knows an `AgentLink`, a
terminal that debugs, as long as its pipe is open.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from monarch._src.net.local.pipe import Pipe, room_to_read
from monarch._src.net.local.poll import WRITE, Poll, new_poll
from monarch._src.net.local.router import dial, flush_until
from monarch._src.net.peers import VERSIONS
from monarch._src.net.session_directory import address_of
from monarch._src.wire.frames import FrameError, decode, encode
from monarch._src.wire.ids import AGENT, DEBUGGER, OBSERVER
from monarch._src.wire.messages import (
    PROTOCOL,
    AnyMessage,
    Hello,
    Message,
    ReadStacks,
    ReadTable,
    Refused,
    SampleStacks,
    SetHistory,
    Snapshot,
    Snapshotted,
    StacksRead,
    StacksSampled,
    TableRead,
)
from monarch._src.wire.stream import StreamError, pack

Question: TypeAlias = "Snapshot | ReadStacks | SampleStacks | ReadTable | SetHistory"
Answer: TypeAlias = "Snapshotted | StacksRead | StacksSampled | TableRead | Refused | None"
_ANSWERS = (Snapshotted, StacksRead, StacksSampled, TableRead, Refused)
OTHER_VERSION = "it answers in a protocol of another version"
FAREWELL_S = 0.1


def ask_agents(
    directories: Sequence[Path],
    timeout_s: float,
    questions: Sequence[Question] = (),
    silence_s: float = inf,
) -> list[Answer]:
    """Ask the agents of these sessions at the same time.

    Args:
        questions: one for each session; none: each is asked for a snapshot.
        silence_s: how long an agent may send neither its answer nor that it waits for others.

    Returns:
        The answers, in the order of `directories`. None: the agent does not listen, or has not
        answered within `timeout_s` seconds, or was silent for too long. Refused: the agent speaks
        another version.
    """
    asked: dict[int, tuple[int, Pipe]] = {}
    answers: list[Answer] = [None] * len(directories)
    poll = new_poll()
    try:
        for at, directory in enumerate(directories):
            pipe = _introduced(poll, directory, OBSERVER, "observer")
            if pipe is not None:
                pipe.send(pack(encode(questions[at] if questions else Snapshot(1, []))))
                asked[pipe.fd] = (at, pipe)
        begun = time.monotonic()
        heard = dict.fromkeys(asked, begun)
        while asked:
            until = min(begun + timeout_s, max(heard.values()) + silence_s)
            left = until - time.monotonic()
            found = poll.poll(max(0.0, left))
            if not found and left <= 0:
                break
            for fd, events in found:
                at, pipe = asked[fd]
                heard[fd] = time.monotonic()
                ended, answers[at] = _receive_answer(pipe, events)
                if ended:
                    del asked[fd]
                    del heard[fd]
                    pipe.close()
    finally:
        for _, pipe in asked.values():
            pipe.close()
        poll.close()
    return answers


class AgentLink:
    """A lasting connection to an agent, for a terminal that debugs.

    Raises:
        ConnectionError: no agent listens in that directory.
    """

    def __init__(self, directory: Path) -> None:
        self._poll = new_poll()
        self._received: deque[AnyMessage] = deque()
        self._ended = False
        pipe = _introduced(self._poll, directory, DEBUGGER, "debugger")
        if pipe is None:
            self._poll.close()
            raise ConnectionError(f"no host agent listens in {directory}")
        self._pipe = pipe

    def send(self, message: Message) -> None:
        """Send a message without waiting."""
        self._pipe.send(pack(encode(message)))

    def receive(self, timeout_s: float | None) -> AnyMessage | None:
        """The agent's next message; None after `timeout_s` seconds without one.

        Raises:
            ConnectionError: the agent has ended, and all its messages were received.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._received:
            if self._ended:
                raise ConnectionError("the host agent has ended")
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._poll_pipe(left) and left is not None:
                return None
        return self._received.popleft()

    def pending(self) -> bool:
        """Whether `receive` would return, or raise, at once."""
        if not self._received and not self._ended:
            self._poll_pipe(0.0)
        return bool(self._received) or self._ended

    def wait(self, fd: int, timeout_s: float) -> bool:
        """Block until the agent has sent a message or `fd` can be read; returns whether it can."""
        poll = select.poll()
        poll.register(self._poll.fileno(), select.POLLIN)
        poll.register(fd, select.POLLIN)
        time_left = 0.0 if self._received or self._ended else timeout_s
        return any(found == fd for found, _ in poll.poll(time_left * 1e3))

    def _poll_pipe(self, timeout_s: float | None) -> bool:
        """Receive for that time; returns whether the pipe had an event."""
        found = self._poll.poll(timeout_s)
        for _, events in found:
            self._ended, messages = _receive(self._pipe, events)
            self._received.extend(messages)
        return bool(found)

    def close(self) -> None:
        """Disconnect. Idempotent."""
        flush_until([self._pipe], time.monotonic() + FAREWELL_S)  # send the last messages
        self._pipe.close()
        self._poll.close()


def _introduced(poll: Poll, directory: Path, prefix: str, kind: str) -> Pipe | None:
    """Open a pipe to the agent and send a hello; None if no agent listens there."""
    name = f"{prefix}{os.urandom(6).hex()}"
    pipe = dial(address_of(directory, AGENT), name.encode(), poll)
    if pipe is not None:
        hello = Hello(PROTOCOL, name, kind, os.getpid(), "", VERSIONS)
        pipe.send(pack(encode(hello)))
    return pipe


def _receive(pipe: Pipe, events: int) -> tuple[bool, list[AnyMessage]]:
    """Whether the pipe has ended, and the messages received."""
    if events & WRITE:
        pipe.flush()
    received: list[Any] = []
    try:
        messages = pipe.receive(room_to_read())
        received.extend(decode(frames[1:])[0] for frames in messages or ())
    except (StreamError, FrameError):
        return True, [*received, Refused(OTHER_VERSION)]
    return messages is None, received


def _receive_answer(pipe: Pipe, events: int) -> tuple[bool, Answer]:
    """Whether the conversation is over, and the answer if there is one."""
    ended, messages = _receive(pipe, events)
    for message in messages:
        if isinstance(message, TableRead) and message.waiting:
            continue
        if isinstance(message, _ANSWERS):
            return True, message
    return ended, None
