"""Stop drains, cleans up, ends the processes, and says so when it is too late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import MeshStoppedError, ProcMesh, SupervisionError, this_host
from monarch.config import configured
from tests.integration.actors import Counter, Echo, Recorder, Teller, Tidy
from tests.integration.gates import GateKeeper
from tests.integration.mortals import Failing
from tests.integration.programs import watched

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
