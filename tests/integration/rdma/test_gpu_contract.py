"""The contract that every transport keeps, with memory of a GPU on either side or on both.

Over a fake of the driver's functions, and over a real GPU where there is one.
"""

from __future__ import annotations

import pytest

from monarch._src.system import shared_memory
from tests.integration.rdma.gpu_parties import NO_REAL_GPU, way_of, ways
from tests.integration.rdma.test_transports import *  # noqa: F403

pytestmark = [
    pytest.mark.skipif(not shared_memory.PRESENT, reason="shm, cma and cuda_ipc need Linux"),
    pytest.mark.slow,
]
WAYS = ways(
    ("cuda_ipc", "of gpu", "to gpu"),
    ("cuda_ipc", "of gpu", "to host"),
    ("tcp", "of gpu", "to gpu"),
    ("tcp", "of gpu", "to no gpu"),
    ("tcp", "of far gpu", "to gpu"),
    ("tcp", "of far gpu", "to no gpu"),
    ("tcp", "of host", "to gpu"),
    ("cma", "of host", "to gpu"),
    ("shm", "of host", "to gpu"),
)


@pytest.fixture(scope="module", params=WAYS)
def transport(request: pytest.FixtureRequest) -> str:
    return way_of(request.param)


@pytest.mark.skipif(bool(NO_REAL_GPU), reason=f"no GPU that could be used: {NO_REAL_GPU}")
def test_a_real_gpu_is_among_those_that_keep_it() -> None:
    assert any(way.endswith("real") for way in WAYS)
