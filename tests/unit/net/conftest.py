"""Routers, nodes and links over real sockets, closed after the test."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from monarch._src.net.hosts import keys
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.local import leader as baton_module
from monarch._src.net.local import router as router_module
from monarch._src.net.local.poll import SelectorPoll
from monarch._src.net.local.router import Router
from monarch._src.net.node import Node
from monarch._src.net.state.access import Role
from monarch._src.net.state.link_actions import Bounds
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import AnyMessage
from tests.unit.net.asker import PATIENCE_S, Asker, MakeNode
from tests.unit.net.linked import BOUNDS, Party
from tests.unit.net.pipe_end import Stranger
from tests.unit.net.received import Heard
from tests.unit.net.routers import MakeRouter, address

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


@pytest.fixture(params=["of this system", "by a selector"])
def polling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way in which a router waits for descriptors."""
    if request.param == "by a selector":
        monkeypatch.setattr(router_module, "new_poll", SelectorPoll)


@pytest.fixture
def pair(make_router: MakeRouter, sockets: Path) -> tuple[Router, Router]:
    """Two routers, the first of which has connected to the second."""
    a, b = make_router("a"), make_router("b")
    a.connect(b">b", address(sockets, "b"))
    return a, b


@pytest.fixture
def asker(make_node: MakeNode, sockets: Path) -> Asker:
    """One that asks, and the node which answers it."""
    return Asker(make_node, sockets)


@pytest.fixture
def no_rescue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The IO thread, which looks once a tick, does not come to look before the test is over."""
    monkeypatch.setattr(baton_module, "TICK", 10 * PATIENCE_S)


@pytest.fixture
def heard() -> Heard:
    """What to give a node for its handler."""
    return Heard()


@pytest.fixture
def stranger() -> Iterator[Callable[..., Stranger]]:
    """Connects to an address, under a name, if one is given."""
    made: list[Stranger] = []

    def make(address: str, name: str = "") -> Stranger:
        connected = socket.socket(socket.AF_UNIX)
        made.append(Stranger(connected))
        connected.connect(address.removeprefix("ipc://"))
        if name:
            made[-1].say([name.encode()])
        return made[-1]

    yield make
    for one in made:
        one.socket.close()


@pytest.fixture
def bare_socket() -> Iterator[Callable[..., zmq.Socket[bytes]]]:
    """A ZeroMQ socket of ours, to say to a listener of links what no node would say."""
    context = zmq.Context()
    made: list[zmq.Socket[bytes]] = []

    def make(kind: int, name: str = "") -> zmq.Socket[bytes]:
        one = context.socket(kind)
        one.setsockopt(zmq.LINGER, 0)
        one.setsockopt(zmq.RCVTIMEO, 30_000)
        if name:
            one.setsockopt(zmq.ROUTING_ID, name.encode())
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()
    context.term()


@pytest.fixture
def job_keys(tmp_path: Path) -> Callable[[Role], Keys]:
    """The keys of a job, by role."""
    keys.make(tmp_path / "job", "training")
    return lambda role: keys.load(tmp_path / "job", None, role)


@pytest.fixture
def audit_log(tmp_path: Path) -> Path:
    """Where the listening side of a link writes what it refused."""
    return tmp_path / "audit.jsonl"


@pytest.fixture
def make_party() -> Iterator[Callable[..., Party]]:
    """A process, as far as links go; closed after the test."""
    made: list[Party] = []

    def make(
        name: str,
        own: Keys | None,
        log: Path | None = None,
        bounds: Bounds = BOUNDS,
        heartbeat_s: float = 5.0,
        **options: Any,
    ) -> Party:
        made.append(Party(name, own, log, bounds, heartbeat_s, **options))
        return made[-1]

    yield make
    for party in reversed(made):
        party.close()
