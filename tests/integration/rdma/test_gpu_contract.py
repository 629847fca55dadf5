"""The contract that every transport keeps, with memory of a GPU on either side or on both.

Over a fake of the driver's functions, and over a real GPU where there is one.
"""

from __future__ import annotations

import pytest

from monarch._src.system import shared_memory
from tests.integration.rdma.gpu_parties import NO_REAL_GPU, way_of, ways
from tests.integration.rdma.test_transports import (
    procs,
    sides,
    test_a_batch_is_one_unit_and_can_be_submitted_again,
    test_a_second_transfer_registers_nothing,
    test_a_smaller_source_leaves_the_rest_as_it_was,
    test_bytes_of_any_size_are_written_whatever_the_offset,
    test_bytes_of_any_size_arrive_whatever_the_offset,
    test_handles_that_were_dropped_by_anybody_are_refused,
    test_handles_to_memory_that_was_freed_and_is_used_again_are_refused,
    test_sixteen_in_flight_each_get_their_own_bytes,
    test_the_owner_may_be_busy,
    test_the_owner_may_hold_the_interpreters_lock,
    test_transfers_leave_nothing_open,
)

__all__ = [
    "procs",
    "sides",
    "test_a_batch_is_one_unit_and_can_be_submitted_again",
    "test_a_second_transfer_registers_nothing",
    "test_a_smaller_source_leaves_the_rest_as_it_was",
    "test_bytes_of_any_size_are_written_whatever_the_offset",
    "test_bytes_of_any_size_arrive_whatever_the_offset",
    "test_handles_that_were_dropped_by_anybody_are_refused",
    "test_handles_to_memory_that_was_freed_and_is_used_again_are_refused",
    "test_sixteen_in_flight_each_get_their_own_bytes",
    "test_the_owner_may_be_busy",
    "test_the_owner_may_hold_the_interpreters_lock",
    "test_transfers_leave_nothing_open",
]
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
