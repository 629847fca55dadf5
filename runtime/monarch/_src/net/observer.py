"""Asks host agents what their procs do, without being a node that anybody could write to.

Runs in: the command line; one thread, which blocks. An observer is known to an agent from its hello
to the answer, owns nothing, listens nowhere, and leaves nothing behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import zmq

from monarch._src.core.ids import AGENT, OBSERVER
from monarch._src.net.directory import address_of
from monarch._src.net.node import versions
from monarch._src.wire.frames import FrameError, decode, encode
from monarch._src.wire.messages import PROTOCOL, Hello, Refused, Snapshot, Snapshotted

Answer: TypeAlias = "Snapshotted | Refused | None"


def ask_agents(directories: Sequence[Path], timeout_s: float) -> list[Answer]:
    """What the agents of these sessions report, all asked at once.

    None: no answer came in `timeout_s` seconds, from one that is stopped, say. Refused: that agent
    speaks another version.
    """
    context: zmq.Context[Any] = zmq.Context(io_threads=1)
    asked: dict[zmq.Socket[Any], int] = {}
    answers: list[Answer] = [None] * len(directories)
    poller = zmq.Poller()
    try:
        for at, directory in enumerate(directories):
            socket = context.socket(zmq.DEALER)
            asked[socket] = at
            _ask(socket, directory)
            poller.register(socket, zmq.POLLIN)
        deadline = time.monotonic() + timeout_s
        while asked and (left := deadline - time.monotonic()) > 0:
            for socket, _ in poller.poll(int(left * 1e3) + 1):
                answer = _answer(socket)
                if answer is not None:
                    answers[asked.pop(socket)] = answer
                    poller.unregister(socket)
                    socket.close(0)
    finally:
        context.destroy(0)
    return answers


def _ask(socket: zmq.Socket[Any], directory: Path) -> None:
    name = f"{OBSERVER}{os.urandom(6).hex()}"
    socket.setsockopt(zmq.ROUTING_ID, name.encode())
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(address_of(directory, AGENT))
    hello = Hello(PROTOCOL, name, "observer", os.getpid(), "", versions())
    for message in (hello, Snapshot(1, [])):
        socket.send_multipart(encode(message))


def _answer(socket: zmq.Socket[Any]) -> Answer:
    try:
        message, _ = decode(socket.recv_multipart())
    except FrameError:
        return Refused("it answers in a protocol of another version")
    return message if isinstance(message, (Snapshotted, Refused)) else None
