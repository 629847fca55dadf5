"""A transport that fails: the right bytes by another one, one warning, the reason in the report."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from monarch._src.system import shared_memory
from monarch.actor import ActorError, ProcMesh
from monarch.config import configured
from monarch.rdma import RDMAUnavailableError
from tests.integration.rdma.parties import Holder, Mover

Spawn = Callable[..., ProcMesh]
pytestmark = pytest.mark.skipif(not shared_memory.PRESENT, reason="shm and cma need Linux")
MIB = 1 << 20


@pytest.fixture
def sides(procs: ProcMesh) -> tuple[Any, Any]:
    return (
        procs.slice(gpus=0).spawn("holder", Holder),
        procs.slice(gpus=1).spawn("mover", Mover),
    )


@pytest.mark.parametrize("when", ["open", "first", "half way"])
@pytest.mark.parametrize(
    ("broken", "instead", "warning"),
    [("cma", "tcp", "RDMATcpFallbackWarning"), ("shm", "cma", "RDMAReadTransferWarning")],
)
def test_a_transport_that_fails_is_replaced_with_one_warning_and_the_right_bytes(
    sides: tuple[Any, Any], broken: str, instead: str, warning: str, when: str
) -> None:
    holder, mover = sides
    buffer = holder.make.call_one(3 * MIB + 7, broken == "shm", seed=5).get()
    mover.break_transport.call_one(buffer, broken, when).get()
    used, warned = mover.read_with_warnings.call_one(buffer, 5).get()
    assert used == instead
    assert [category for category, _ in warned] == [warning]
    assert "it was cut by the test (don't cut it)" in warned[0][1]
    ((_, failed, transfers),) = mover.used.call_one().get()
    assert failed[broken] == "it was cut by the test (don't cut it)"
    assert transfers[instead] >= 3


def test_two_failures_in_one_transfer_lead_to_the_third(sides: tuple[Any, Any]) -> None:
    holder, mover = sides
    buffer = holder.make.call_one(3 * MIB, True, seed=6).get()
    mover.break_transport.call_one(buffer, "shm", "open").get()
    mover.break_transport.call_one(buffer, "cma", "open").get()
    used, warned = mover.read_with_warnings.call_one(buffer, 6).get()
    assert used == "tcp"
    assert [category for category, _ in warned] == ["RDMATcpFallbackWarning"]
    assert "shm: it was cut" in warned[0][1]
    assert "cma: it was cut" in warned[0][1]
    assert "rdma_allow_tcp_fallback=False" in warned[0][1]


def test_without_the_fallback_it_is_an_error_that_says_why(spawn_procs: Spawn) -> None:
    holder = spawn_procs({"gpus": 1}, name="owners").spawn("holder", Holder)
    with configured(rdma_allow_tcp_fallback=False):
        mover: Any = spawn_procs({"gpus": 1}, name="movers").spawn("mover", Mover)
        buffer = holder.make.call_one(1000, False).get()
        mover.break_transport.call_one(buffer, "cma", "open").get()
        with pytest.raises(ActorError) as raised:
            mover.first_byte.call_one(buffer).get()
    error = raised.value.exception
    assert isinstance(error, RDMAUnavailableError)
    assert "cma: it was cut by the test (don't cut it)" in str(error)
    assert "tcp: rdma_allow_tcp_fallback is False" in str(error)
    assert error.size == 1000
    assert error.bytes_done == 0


def test_a_last_resort_that_failed_is_tried_again_by_the_next_transfer(
    sides: tuple[Any, Any],
) -> None:
    holder, mover = sides
    buffer = holder.make.call_one(3 * MIB, False, seed=6).get()
    mover.break_transport.call_one(buffer, "cma", "open").get()
    mover.break_transport.call_one(buffer, "tcp", "half way").get()
    with pytest.raises(ActorError, match="no transport leads there") as raised:
        mover.read.call_one(buffer, 6).get()
    assert isinstance(raised.value.exception, RDMAUnavailableError)
    assert 0 < raised.value.exception.bytes_done < 3 * MIB
    small = holder.make.call_one(100, False, seed=7).get()
    assert mover.read.call_one(small, 7).get() == "tcp"


def _may_not_look_into_others() -> None:
    """Without CAP_SYS_PTRACE, as an ordinary user is."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    data[0] &= ~(1 << 19)
    data[1] &= ~(1 << 19)
    assert libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())


def _may_not_be_looked_into() -> None:
    assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE


def test_a_kernel_that_refuses_is_told_with_its_remedy(spawn_procs: Spawn) -> None:
    owners = spawn_procs({"gpus": 1}, name="owners", bootstrap=_may_not_be_looked_into)
    movers = spawn_procs({"gpus": 1}, name="movers", bootstrap=_may_not_look_into_others)
    holder: Any = owners.spawn("holder", Holder)
    mover: Any = movers.spawn("mover", Mover)
    buffer = holder.make.call_one(3 * MIB, True, seed=8).get()
    used, warned = mover.read_with_warnings.call_one(buffer, 8).get()
    assert used == "tcp"
    assert [category for category, _ in warned] == ["RDMATcpFallbackWarning"]
    assert f"does not let this one open its memory: {os.strerror(errno.EACCES)}" in warned[0][1]
    assert "CAP_SYS_PTRACE" in warned[0][1]
