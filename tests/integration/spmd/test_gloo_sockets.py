"""Connections of gloo groups, which are shut down to end the collectives that wait for them."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed

from monarch._src.spmd import gloo_sockets

dist: Any = torch.distributed
LIMIT = timedelta(seconds=60)


def in_two_threads(function: Callable[[int], Any]) -> list[Any]:
    """What the function returns for 0 and 1, each on a thread of its own."""
    found: list[Any] = [None, None]

    def run(rank: int) -> None:
        found[rank] = function(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.fixture
def pair() -> Iterator[Callable[[str], list[Any]]]:
    """Make the two ends of a gloo group, both in this process, once for each name."""
    torch_own = dist.distributed_c10d.ProcessGroupGloo
    gloo_sockets.install()
    store = dist.HashStore()

    def make(name: str) -> list[Any]:
        def end(rank: int) -> Any:
            kind = dist.distributed_c10d.ProcessGroupGloo
            return kind(dist.PrefixStore(name, store), rank, 2, LIMIT)

        return in_two_threads(end)

    yield make
    make("last")  # it closes what was shut down
    dist.distributed_c10d.ProcessGroupGloo = torch_own


def test_a_collective_that_waits_for_a_peer_ends_with_an_error(
    pair: Callable[[str], list[Any]],
) -> None:
    first, _second = pair("group")
    work = first.allreduce([torch.ones(4)])
    assert gloo_sockets.shut_down() == 2  # this process has both ends
    with pytest.raises(RuntimeError, match="Connection closed"):
        work.wait(LIMIT)


def test_a_connection_stays_open_until_the_next_group_has_its_own(
    pair: Callable[[str], list[Any]],
) -> None:
    """A peer that still writes may not see a reset: gloo would forget the send that it breaks."""
    first, _second = pair("group")
    work = first.allreduce([torch.ones(4)])
    gloo_sockets.shut_down()
    with pytest.raises(RuntimeError):
        work.wait(LIMIT)
    ended = gloo_sockets.kept_open.copy()
    assert [stat.S_ISSOCK(os.fstat(fd).st_mode) for fd in ended] == [True, True]
    pair("next")
    assert gloo_sockets.kept_open == []


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_connections_of_the_program_stay_open_whenever_they_were_made(
    pair: Callable[[str], list[Any]], server: socket.socket
) -> None:
    """Also those that a thread makes while a group is made, as a logger or a data client does."""
    opened: list[socket.socket] = []
    go = threading.Event()

    def connect() -> None:
        while not go.is_set() or len(opened) < 6:
            opened.append(socket.create_connection(server.getsockname()))
            opened.append(server.accept()[0])

    thread = threading.Thread(target=connect)
    thread.start()
    first, _second = pair("group")
    go.set()
    thread.join()
    work = first.allreduce([torch.ones(4)])
    assert gloo_sockets.shut_down() == 2
    with pytest.raises(RuntimeError, match="Connection closed"):
        work.wait(LIMIT)
    for one, other in zip(opened[::2], opened[1::2], strict=True):
        one.sendall(b"x")
        assert other.recv(1) == b"x"
        one.close()
        other.close()


def test_sockets_of_the_program_keep_their_flags(pair: Callable[[str], list[Any]]) -> None:
    here, there = socket.socketpair()
    with here, there:
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(60)
        try:
            pair("group")
            gloo_sockets.shut_down()
        finally:
            socket.setdefaulttimeout(before)
        assert [os.get_blocking(one.fileno()) for one in (here, there)] == [True, True]
