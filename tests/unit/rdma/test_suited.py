"""Which transports could move a memory at all: what needs one kernel is for one host."""

from __future__ import annotations

from monarch._src.rdma.handle import VERSION, Handle, Owner
from monarch._src.rdma.plane import suited
from monarch._src.system import shared_memory


def handle(host: str, *, shared: bool) -> Handle:
    owner = Owner(bytes(16), host, 1, -1, "node", "address")
    return Handle(VERSION, owner, 0, bytes(16), 100, False, shared, "actor", "id")


def test_memory_of_another_host_is_moved_by_cards_or_sockets_only() -> None:
    here = shared_memory.this_host()
    assert suited(handle(here, shared=True)) == ("shm", "cma", "ibverbs", "tcp")
    assert suited(handle(here, shared=False)) == ("cma", "ibverbs", "tcp")
    assert suited(handle("elsewhere/1234", shared=True)) == ("ibverbs", "tcp")
