"""`shutdown_context`: what it ends, within which time, and what it gives."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from monarch.actor import Actor, ProcMesh, endpoint, shutdown_context, this_host
from monarch.config import configured

PATIENCE_S = 60


class Dawdling(Actor):
    """Takes its time to clean up."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    def __cleanup__(self, _: BaseException | None) -> None:
        time.sleep(600)


def started() -> ProcMesh:
    mesh = this_host().spawn_procs({"gpus": 1})
    mesh.initialized.get(timeout=PATIENCE_S)
    return mesh


def test_shutdown_gives_a_future_that_is_had_by_blocking_and_by_awaiting() -> None:
    async def awaited(mesh: ProcMesh) -> None:
        assert await shutdown_context() is None
        assert mesh.stopped

    mesh = started()
    assert shutdown_context().get(timeout=PATIENCE_S) is None
    assert mesh.stopped
    asyncio.run(awaited(started()))
    assert shutdown_context().get() is None, "there is nothing to end"


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, "10s"])
def test_what_is_no_time_for_shutdown_is_refused_and_ends_nothing(wrong: Any) -> None:
    mesh = started()
    with pytest.raises((ValueError, TypeError), match=r"host_timeout=.*: give seconds"):
        shutdown_context(wrong)
    assert not mesh.stopped
    mesh.stop().get(timeout=PATIENCE_S)


def test_a_time_for_shutdown_bounds_what_clean_up_may_take(
    agent_errors: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """What clean-up may take otherwise is ten minutes here."""
    with configured(cleanup_timeout=600, liveness=600):
        dawdling = this_host().spawn_procs({"gpus": 1}).spawn("dawdling", Dawdling)
        process = psutil.Process(dawdling.pid.call_one().get(timeout=PATIENCE_S))
        shutdown_context(0.0).get(timeout=PATIENCE_S)
    process.wait(timeout=PATIENCE_S)
    assert "was killed" in caplog.text
    agent_errors()
