"""The contract that every transport keeps, over an RDMA card: the same tests, between processes.

Elsewhere than where a card is, `test_softroce.py` runs this in a virtual machine.
"""

from __future__ import annotations

from typing import Any

import pytest

from monarch._src.rdma.verbs import sysfs
from monarch.actor import ProcMesh
from tests.integration.rdma.parties import Holder, Mover
from tests.integration.rdma.test_deaths import (
    test_a_handle_outlives_its_owner_as_an_error,
    test_a_receiver_that_dies_half_way_costs_the_owner_nothing,
    test_an_owner_that_dies_half_way_is_a_typed_error,
)
from tests.integration.rdma.test_transports import *  # noqa: F403

__all__ = [
    "test_a_handle_outlives_its_owner_as_an_error",
    "test_a_receiver_that_dies_half_way_costs_the_owner_nothing",
    "test_an_owner_that_dies_half_way_is_a_typed_error",
]
pytestmark = pytest.mark.skipif(
    not sysfs.present(), reason="no RDMA device here; test_softroce.py boots a machine that has one"
)
MIB = 1 << 20


@pytest.fixture(scope="module", params=["ibverbs"])
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("when", ["open", "first", "half way"])
def test_a_card_that_fails_is_replaced_with_one_warning_and_the_right_bytes(
    procs: ProcMesh, when: str
) -> None:
    """Of the two that are there already: a client that has used neither, and an owner anew."""
    holder: Any = procs.slice(gpus=1).spawn("holder", Holder)
    mover: Any = procs.slice(gpus=0).spawn("mover", Mover)
    mover.only.call_one("ibverbs", "tcp").get()
    buffer = holder.make.call_one(3 * MIB + 7, False, seed=5).get()
    mover.forget.call_one(buffer).get()
    mover.break_transport.call_one(buffer, "ibverbs", when).get()
    used, warned = mover.read_with_warnings.call_one(buffer, 5).get()
    assert used == "tcp"
    assert [category for category, _ in warned] == ["RDMATcpFallbackWarning"]
    assert "ibverbs: it was cut by the test (don't cut it)" in warned[0][1]
    ((_, failed, transfers),) = mover.used.call_one().get()
    assert failed == {"ibverbs": "it was cut by the test (don't cut it)"}
    assert transfers["tcp"] >= 3
