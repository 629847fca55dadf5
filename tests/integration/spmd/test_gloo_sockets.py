"""Connections of gloo groups, which are shut down to end the collectives that wait for them."""

from __future__ import annotations

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
    assert [one.fileno() >= 0 for one in gloo_sockets.kept_open] == [True, True]
    pair("next")
    assert gloo_sockets.kept_open == []
