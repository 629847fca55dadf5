"""Routers and nodes over real sockets, closed after the test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from monarch._src.net.node import Node
from monarch._src.net.router import Router
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import AnyMessage

_numbers = itertools.count()


@pytest.fixture
def sockets(own_base_directory: Path) -> Path:
    """A directory for sockets, with a short name."""
    directory = own_base_directory / f"s{next(_numbers)}"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def make_router(sockets: Path) -> Iterator[Callable[[str], Router]]:
    """A router by that name, at the address of that name."""
    made: list[Router] = []

    def make(name: str) -> Router:
        made.append(Router(name.encode(), f"ipc://{sockets}/{name}"))
        return made[-1]

    yield make
    for router in made:
        router.close()


@pytest.fixture
def make_node(sockets: Path) -> Iterator[Callable[..., Node]]:
    """A node by that name, at the address of that name; messages go to `handle`, if given."""
    made: list[Node] = []

    def ignore(peer: str, message: AnyMessage, payload: Payload) -> None:
        pass

    def make(
        name: str,
        handle: Any = ignore,
        *,
        start: bool = True,
        after_drain: Callable[[], bool] | None = None,
        **options: Any,
    ) -> Node:
        node = Node(name, "proc", f"ipc://{sockets}/{name}", handle, **options)
        node.after_drain = after_drain
        made.append(node)
        if start:
            node.start()
        return node

    yield make
    for node in made:
        node.close()


@pytest.fixture
def bare_socket() -> Iterator[Callable[..., zmq.Socket[bytes]]]:
    """A ZeroMQ socket of ours, to say what no node would say."""
    context = zmq.Context()
    made: list[zmq.Socket[bytes]] = []

    def make(kind: int, name: str = "") -> zmq.Socket[bytes]:
        socket = context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 30_000)
        if name:
            socket.setsockopt(zmq.ROUTING_ID, name.encode())
        made.append(socket)
        return socket

    yield make
    for socket in made:
        socket.close()
    context.term()
