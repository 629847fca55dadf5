"""An interrupt that came as the main thread of a rank went to sleep is not lost.

Python has noted such a signal, and no system call was ended by it. Here it comes to another thread
of the rank, which is the same, and comes whenever it is wanted.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, endpoint
from tests.integration.failing_actors import Faulty
from tests.integration.gates import PATIENCE_S, Gate, GateKeeper, gate_in, write_byte

Spawn = Callable[..., ProcMesh]
FOR_EVER_S = 600.0


def note_at(gate: Gate) -> None:
    """Have this process note a SIGINT, by a thread of its own, when that gate is opened."""

    def note() -> None:
        gate.pass_through()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    threading.Thread(target=note, daemon=True).start()


class Sleeps(Actor):
    """Blocks on its main thread, and says how that ended."""

    @endpoint
    def answers(self) -> str:
        return "here"

    @endpoint
    def wait_for(self, other: Any, holds: Gate, notes: Gate) -> str:
        note_at(notes)
        try:
            other.hold.call_one(holds).get()
        except KeyboardInterrupt:
            return "interrupted"
        return "not interrupted"

    @endpoint
    def sleep(self, _other: Any, holds: Gate, notes: Gate) -> str:
        note_at(notes)
        try:
            write_byte(holds.entered)
            time.sleep(FOR_EVER_S)
        except KeyboardInterrupt:
            return "interrupted"
        return "not interrupted"

    @endpoint
    def read(self, _other: Any, holds: Gate, notes: Gate) -> str:
        note_at(notes)
        try:
            holds.pass_through()
        except KeyboardInterrupt:
            return "interrupted"
        return "not interrupted"


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[GateKeeper]:
    """The gate of the thread that is signalled."""
    folder = tmp_path / "notes"
    folder.mkdir()
    with gate_in(folder) as keeper:
        yield keeper


@pytest.mark.parametrize("how", ["wait_for", "sleep", "read"])
def test_an_endpoint_that_sleeps_wakes_to_see_it(
    spawn_procs: Spawn, gate: GateKeeper, notes: GateKeeper, how: str
) -> None:
    procs = spawn_procs(name="workers")
    sleeps = procs.spawn("sleeps", Sleeps)
    other = spawn_procs(name="others").spawn("other", Faulty)
    answer = getattr(sleeps, how).call_one(other, gate.gate, notes.gate)
    gate.wait_entered()
    notes.wait_entered()
    notes.open()
    assert answer.get(timeout=PATIENCE_S) == "interrupted"
    gate.open()
    assert other.pid.call_one().get(timeout=PATIENCE_S) > 0  # it has come through the gate
    assert sleeps.answers.call_one().get(timeout=PATIENCE_S) == "here"
