"""GPUs that are none, for one test, and handles of what is nobody's."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from monarch._src.rdma.cuda.gpu import gpu_if_used
from monarch._src.rdma.handle import VERSION, Handle, Owner
from monarch._src.system import shared_memory
from tests.support import fake_cuda
from tests.support.fake_cuda import FakeDriver

FAR = 1e12  # a deadline


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    """Two devices; nothing of them may be left."""
    driver = fake_cuda.install()
    yield driver
    gc.collect()
    used = gpu_if_used()
    if used is not None:
        used.give_back()
    fake_cuda.uninstall()
    left = {name: n for name, n in driver.held().items() if n}
    assert not left, str(left)


def handle_of(slot: int, key: bytes, size: int, owner: Owner | None = None) -> Handle:
    owner = owner or Owner(bytes(16), shared_memory.this_host(), 1, -1, "node", "address")
    return Handle(VERSION, owner, slot, key, size, False, False, "actor", "id", True)
