"""Stop drains, cleans up, ends the processes, and says so when it is too late."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, MeshStoppedError, ProcMesh, SupervisionError, endpoint, this_host
from monarch.config import configured
from tests.integration.failing_actors import Failing
from tests.integration.gates import Gate, GateKeeper
from tests.integration.programs import run, watched
from tests.integration.sample_actors import Counter, Echo, Recorder, Teller, Tidy

Spawn = Callable[..., ProcMesh]


def test_stop_returns_when_every_process_is_gone(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 3})
    pids = procs.spawn("teller", Teller).pid.call().get().values()
    assert procs.stop().get(timeout=60) is None
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert procs.stopped
    assert "stopped" in repr(procs)


def test_stop_is_idempotent_and_every_future_of_it_ends(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 2})
    first, second = procs.stop(), procs.stop()
    assert first.get(timeout=60) is None
    assert second.get(timeout=60) is None
    assert procs.stop("once more").get(timeout=60) is None


def test_a_mesh_can_be_stopped_before_it_is_up(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 8})
    procs.spawn("teller", Teller)
    procs.stop().get(timeout=60)


def test_a_stopped_mesh_refuses_calls_spawns_and_slices_of_it_too(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 2}, name="short")
    echo = procs.spawn("echo", Echo)
    echo.rank.call().get()
    procs.stop("that was all").get(timeout=60)
    with pytest.raises(MeshStoppedError, match="'short' has been stopped: that was all; spawn"):
        procs.spawn("echo", Echo)
    with pytest.raises(RuntimeError, match="has been stopped"):
        procs.slice(gpus=0).spawn("echo", Echo)
    for send in (echo.rank.call, echo.slice(gpus=1).rank.call_one, echo.rank.broadcast,
                 echo.rank.choose, echo.rank.stream):  # fmt: skip
        with pytest.raises(MeshStoppedError, match=r"'echo'.*has been stopped"):
            send()


def test_a_slice_cannot_be_stopped(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    with pytest.raises(ValueError, match="stop the whole mesh 'workers', not a slice of it"):
        four.slice(gpus=1).stop()
    with pytest.raises(ValueError, match="stop the whole mesh 'echo', not a slice of it"):
        echo.slice(gpus=slice(0, 2)).stop()
    assert echo.rank.call().get().values() == [0, 1, 2, 3]


def test_stop_drains_what_was_sent_before_it(spawn_procs: Spawn, tmp_path: Path) -> None:
    procs = spawn_procs({"gpus": 2})
    tidy = procs.spawn("tidy", Tidy, str(tmp_path / "said"))
    recorder = procs.spawn("recorder", Recorder)
    answers = [recorder.note.call(number) for number in range(200)]
    tidy.note.broadcast("noted")
    procs.stop().get(timeout=60)
    assert [answer.get().values() for answer in answers] == [[n, n] for n in range(200)]
    said = (tmp_path / "said").read_text().splitlines()
    assert sorted(said) == [
        "cleaned up 0 after None", "cleaned up 1 after None", "noted", "noted",
    ]  # fmt: skip


def test_stopping_an_actor_mesh_leaves_its_procs(four: ProcMesh, tmp_path: Path) -> None:
    tidy = four.spawn("tidy", Tidy, str(tmp_path / "said"))
    counter = four.spawn("counter", Counter)
    tidy.note.broadcast("noted")
    assert tidy.stop().get(timeout=60) is None
    assert tidy.stop().get(timeout=60) is None
    said = (tmp_path / "said").read_text().splitlines()
    assert sorted(said) == [f"cleaned up {rank} after None" for rank in range(4)] + ["noted"] * 4
    with pytest.raises(MeshStoppedError, match=r"'tidy' .*has been stopped"):
        tidy.note.broadcast("too late")
    assert counter.add.call(1).get().values() == [1] * 4
    again = four.spawn("tidy", Tidy, str(tmp_path / "said"))
    again.note.call("again").get()
    again.stop().get(timeout=60)


def test_what_outlasts_the_time_for_clean_up_is_killed(
    spawn_procs: Spawn, gate: GateKeeper
) -> None:
    with configured(cleanup_timeout="100ms"):
        procs = spawn_procs({"gpus": 2})
        echo = procs.spawn("echo", Echo)
        teller_pids = procs.spawn("teller", Teller).pid.call().get().values()
        held = echo.slice(gpus=0).pass_gate.call_one(gate.gate)
        gate.wait_entered()
        with watched(teller_pids) as pids:
            procs.stop("enough").get(timeout=60)
            pids.wait_all_ended()
    with pytest.raises(SupervisionError, match=r"gpus=0.* was stopped"):
        held.get(timeout=60)


def test_a_with_block_of_a_program_without_a_loop_stops_its_procs_too(agent_errors: object) -> None:
    with this_host().spawn_procs({"gpus": 2}) as procs:
        assert procs.spawn("echo", Echo).rank.call().get(timeout=60).values() == [0, 1]
    with pytest.raises(RuntimeError, match="has been stopped"):
        procs.spawn("echo", Echo)
    with this_host().spawn_procs() as other:
        other.stop("by hand").get(timeout=60)


def test_a_context_manager_stops_its_mesh() -> None:
    import asyncio

    async def main() -> list[int]:
        async with this_host().spawn_procs({"gpus": 2}) as procs:
            found = (await procs.spawn("teller", Teller).pid.call()).values()
        assert procs.stopped
        return found

    pids = asyncio.run(main())
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_an_error_in_flight_does_not_keep_a_mesh_from_stopping(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 2})
    failing = procs.spawn("failing", Failing)
    answers = [failing.raise_value_error.call() for _ in range(50)]
    procs.stop().get(timeout=60)
    assert all("a bad value" in str(answer.exception()) for answer in answers)


# --- actors that are stuck -----------------------------------------------------------------------


class Held(Actor):
    """Stands at a gate in its constructor, if it is given one."""

    def __init__(self, gate: Gate | None = None) -> None:
        if gate is not None:
            gate.pass_through()

    @endpoint
    def rank(self) -> int:
        return 0

    @endpoint
    def pass_gate(self, gate: Gate) -> None:
        gate.pass_through()


@pytest.mark.parametrize("where", ["endpoint", "constructor"])
def test_stop_of_actors_that_are_stuck_resolves_and_says_which_run_on(
    spawn_procs: Spawn, gate: GateKeeper, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    procs = spawn_procs({"gpus": 2}, name="stuck")
    first = procs.slice(gpus=0)
    if where == "constructor":
        held = first.spawn("held", Held, gate.gate)
    else:
        held = procs.spawn("held", Held)
        held.slice(gpus=0).pass_gate.broadcast(gate.gate)
    gate.wait_entered()
    with configured(cleanup_timeout="200ms"), caplog.at_level(logging.WARNING):
        assert held.stop().get(timeout=60) is None
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        "'held' (Held) has not ended within 0.2 s of its stop(), on stuck, gpus=0"
    )
    with pytest.raises(MeshStoppedError):
        held.rank.call()
    # The others of its process work, and it ends by itself once it goes on.
    assert procs.spawn("echo", Echo).rank.call().get(timeout=60).values() == [0, 1]
    gate.open()
    procs.stop().get(timeout=60)


def test_procs_do_not_give_a_stuck_actor_its_time_again(
    spawn_procs: Spawn, gate: GateKeeper
) -> None:
    """Clean-up may take ten minutes here, so the end of the test shows what was not waited for."""
    with configured(liveness=1200, cleanup_timeout=600, message_delivery_timeout=1200):
        procs = spawn_procs({"gpus": 2})
        held = procs.spawn("held", Held)
        held.pass_gate.broadcast(gate.gate)
        gate.wait_entered(2)
        with configured(cleanup_timeout="200ms"):
            held.stop().get(timeout=60)
    procs.stop().get(timeout=60)


# --- code that still runs ------------------------------------------------------------------------


class Noisy:
    """Writes a line when it is destroyed."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __del__(self) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, b"destroyed")
        os.close(fd)


kept: Any = None


class Keeping(Actor):
    """Has a member and a global that notice their ends."""

    def __init__(self, folder: str) -> None:
        global kept
        kept = Noisy(f"{folder}/global")
        self.member = Noisy(f"{folder}/member")

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def test_a_proc_that_ends_in_order_runs_the_destructors_of_globals_and_actors(
    spawn_procs: Spawn, tmp_path: Path
) -> None:
    procs = spawn_procs({"gpus": 1})
    keeping = procs.spawn("keeping", Keeping, str(tmp_path))
    keeping.pid.call_one().get(timeout=60)
    keeping.stop().get(timeout=60)
    assert not (tmp_path / "global").exists()
    procs.stop().get(timeout=60)
    assert (tmp_path / "member").read_text() == "destroyed"
    assert (tmp_path / "global").read_text() == "destroyed"


def test_destructors_of_a_script_run_too(tmp_path: Path) -> None:
    program = f"""
    import os
    from monarch.actor import Actor, endpoint, this_host

    class Noisy:
        def __del__(self):
            os.close(os.open({str(tmp_path / "global")!r}, os.O_CREAT | os.O_WRONLY))

    class Keeping(Actor):
        def __init__(self):
            globals()["kept"] = Noisy()

        @endpoint
        def pid(self):
            return os.getpid()

    procs = this_host().spawn_procs()
    procs.spawn("keeping", Keeping).pid.call_one().get()
    assert not os.path.exists({str(tmp_path / "global")!r})
    procs.stop().get()
    """
    assert run(tmp_path, program) == (0, "", "")
    assert (tmp_path / "global").exists()
