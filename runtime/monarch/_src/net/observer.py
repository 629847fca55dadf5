"""Asks host agents about their procs, without being a node that anybody could write to.

Runs in: the command line; one thread, which blocks. An observer is known to an agent from its hello
to the answer, owns nothing, listens nowhere, and leaves nothing behind. One that debugs, an
`AgentLink`, is known as long as its pipe is there.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from monarch._src.net.local.pipe import Pipe, room_to_read
from monarch._src.net.local.poll import WRITE, Poll, new_poll
from monarch._src.net.local.router import dialed, let_leave
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
    Refused,
    Snapshot,
    Snapshotted,
    StacksRead,
)
from monarch._src.wire.stream import StreamError, pack

Question: TypeAlias = "Snapshot | ReadStacks"
Answer: TypeAlias = "Snapshotted | StacksRead | Refused | None"
OTHER_VERSION = "it answers in a protocol of another version"
FAREWELL_S = 0.1


def ask_agents(
    directories: Sequence[Path], timeout_s: float, questions: Sequence[Question] = ()
) -> list[Answer]:
    """What the agents of these sessions answer, all asked at once.

    `questions`: one for each; none: what their ranks do.

    None: no answer came in `timeout_s` seconds, from one that is stopped, say, or nobody listens.
    Refused: that agent speaks another version.
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
        deadline = time.monotonic() + timeout_s
        while asked and (left := deadline - time.monotonic()) > 0:
            for fd, events in poll.poll(left):
                at, pipe = asked[fd]
                ended, answers[at] = _answered(pipe, events)
                if ended:
                    del asked[fd]
                    pipe.close()
    finally:
        for _, pipe in asked.values():
            pipe.close()
        poll.close()
    return answers


class AgentLink:
    """One who stays: a terminal that debugs. The agent knows it until this is closed, or ends.

    Raises:
        ConnectionError: nobody listens there.
    """

    def __init__(self, directory: Path) -> None:
        self._poll = new_poll()
        self._heard: deque[AnyMessage] = deque()
        self._ended = False
        pipe = _introduced(self._poll, directory, DEBUGGER, "debugger")
        if pipe is None:
            self._poll.close()
            raise ConnectionError(f"no host agent listens in {directory}")
        self._pipe = pipe

    def send(self, message: Message) -> None:
        """Say that, without waiting."""
        self._pipe.send(pack(encode(message)))

    def receive(self, timeout_s: float | None) -> AnyMessage | None:
        """What the agent says next; None: nothing in time.

        Raises:
            ConnectionError: the agent has ended, and has said nothing else before.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._heard:
            if self._ended:
                raise ConnectionError("the host agent has ended")
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._look(left) and left is not None:
                return None
        return self._heard.popleft()

    def pending(self) -> bool:
        """Whether `receive` would return, or raise, at once."""
        if not self._heard and not self._ended:
            self._look(0.0)
        return bool(self._heard) or self._ended

    def wait(self, fd: int, timeout_s: float) -> bool:
        """Block until the agent says something, or that descriptor can be read: whether it can."""
        poll = select.poll()
        poll.register(self._poll.fileno(), select.POLLIN)
        poll.register(fd, select.POLLIN)
        time_left = 0.0 if self._heard or self._ended else timeout_s
        return any(found == fd for found, _ in poll.poll(time_left * 1e3))

    def _look(self, timeout_s: float | None) -> bool:
        """Whether anything has happened on the pipe in that time."""
        found = self._poll.poll(timeout_s)
        for _, events in found:
            self._ended, heard = _heard(self._pipe, events)
            self._heard.extend(heard)
        return bool(found)

    def close(self) -> None:
        """Leave. Idempotent."""
        let_leave([self._pipe], time.monotonic() + FAREWELL_S)  # what was said last
        self._pipe.close()
        self._poll.close()


def _introduced(poll: Poll, directory: Path, prefix: str, kind: str) -> Pipe | None:
    """A pipe to the agent on which we have said who we are; None if nobody listens there."""
    name = f"{prefix}{os.urandom(6).hex()}"
    pipe = dialed(address_of(directory, AGENT), name.encode(), poll)
    if pipe is not None:
        hello = Hello(PROTOCOL, name, kind, os.getpid(), "", VERSIONS)
        pipe.send(pack(encode(hello)))
    return pipe


def _heard(pipe: Pipe, events: int) -> tuple[bool, list[AnyMessage]]:
    """Whether that was the end, and what has come."""
    if events & WRITE:
        pipe.flush()
    heard: list[Any] = []
    try:
        messages = pipe.receive(room_to_read())
        heard.extend(decode(frames[1:])[0] for frames in messages or ())
    except (StreamError, FrameError):
        return True, [*heard, Refused(OTHER_VERSION)]
    return messages is None, heard


def _answered(pipe: Pipe, events: int) -> tuple[bool, Answer]:
    """Whether no more is to be waited for, and what was answered."""
    ended, heard = _heard(pipe, events)
    for message in heard:
        if isinstance(message, (Snapshotted, StacksRead, Refused)):
            return True, message
    return ended, None
