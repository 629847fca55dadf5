"""A worker with a grace that gets SIGTERM: its ranks save their work, and then all ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch.actor import Actor, SupervisionError, attach_to_workers, endpoint, shutdown_context
from monarch.config import configured
from tests.conftest import Faults
from tests.integration.commands import monarch
from tests.integration.gates import Gate, GateKeeper, write_byte
from tests.workers import TRUST_ALL, Worker, worker

PATIENCE_S = 60
STEPS = 3
TERMINATED = 143


class Saver(Actor):
    """A rank whose handler of SIGTERM saves in several steps."""

    @endpoint
    def work(self, folder: str, gate: Gate, *, leave: bool) -> str:
        """Work until SIGTERM has come and the work is saved; then leave, or return."""
        saved, has_saved = os.pipe()

        def save(_number: int, _frame: Any) -> None:
            for step in range(STEPS):
                gate.pass_through()
                Path(folder, f"step{step}").touch()
            os.write(has_saved, b".")
            if leave:
                raise SystemExit(0)

        signal.signal(signal.SIGTERM, save)
        # Were it at the gate, the handler could interrupt it, and go through in its place.
        write_byte(gate.entered)
        os.read(saved, 1)
        return "saved"

    @endpoint
    def pid(self) -> int:
        """Its process."""
        return os.getpid()


@pytest.fixture
def told() -> Iterator[Worker]:
    with worker("--address", "tcp://127.0.0.1:0", "--keys", TRUST_ALL, "--grace", "600") as made:
        yield made
        shutdown_context(reason="the test has ended")


@pytest.mark.parametrize("leave", [True, False])
def test_a_handler_of_sigterm_has_all_the_time_that_it_needs(
    told: Worker, gate: GateKeeper, faults: Faults, tmp_path: Path, leave: bool
) -> None:
    with configured(cleanup_timeout=0.1):  # a time that each step takes, and no rank is killed at
        hosts = attach_to_workers(ca=TRUST_ALL, workers=[told.address])
        saver: Any = hosts.spawn_procs({"gpus": 1}, name="savers").spawn("saver", Saver)
        pid = saver.pid.call_one().get(timeout=PATIENCE_S)
        call = saver.work.call_one(str(tmp_path), gate.gate, leave=leave)
        gate.wait_entered()
        zygotes = [one.pid for one in psutil.Process(told.process.pid).children()]
        for step in range(STEPS):
            # Of the agent, its zygotes and then the agent again, as some schedulers send it.
            for each in (told.process.pid, *zygotes):
                if step != 1 or each == told.process.pid:
                    os.kill(each, signal.SIGTERM)
            gate.wait_entered()
            status, out, _ = monarch("ps", "--at", told.address, "--keys", TRUST_ALL)
            assert status == 0
            assert "savers" in out
            gate.open()
        if leave:
            with pytest.raises(SupervisionError, match="SystemExit: 0"):
                call.get(timeout=PATIENCE_S)
        else:
            assert call.get(timeout=PATIENCE_S) == "saved"
        faults.take_ranks({0})
    assert told.ended() == TERMINATED
    assert sorted(path.name for path in tmp_path.glob("step*")) == ["step0", "step1", "step2"]
    assert not Path(f"/proc/{pid}").exists()


def test_ranks_without_a_handler_end_in_order_and_a_worker_without_ranks_at_once(
    told: Worker, faults: Faults
) -> None:
    hosts = attach_to_workers(ca=TRUST_ALL, workers=[told.address])
    saver: Any = hosts.spawn_procs({"gpus": 1}, name="savers").spawn("saver", Saver)
    saver.pid.call_one().get(timeout=PATIENCE_S)
    told.process.terminate()
    failure = faults.take(PATIENCE_S)
    assert "its worker was told to end by SIGTERM" in str(failure)
    assert told.ended() == TERMINATED


def test_a_grace_that_is_no_time_is_refused() -> None:
    status, _, err = monarch("worker", "--address", "tcp://127.0.0.1:0", "--grace", "-1")
    assert status == 1
    assert "--grace is a time of 0 to 86400 seconds, not -1" in err
