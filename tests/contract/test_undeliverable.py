"""A message that nobody waits for, and that arrives nowhere, goes back to who sent it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, Channel, ProcMesh, SupervisionError, endpoint, send
from tests.conftest import Faults
from tests.contract.owners import Handling, Leaf, Owner, Sender

Spawn = Callable[..., ProcMesh]
STOPPED = "that actor was stopped: I have had enough"


class AsyncHandling(Actor):
    """Handles what comes back on an event loop."""

    def __init__(self, handled: Any, path: str) -> None:
        self.sync = Handling(handled, path)

    @endpoint
    async def send(self, mesh: Any, method: str) -> None:
        getattr(mesh, method).broadcast()

    @endpoint
    async def send_to(self, port: Any) -> None:
        port.send(1)

    @endpoint
    async def fine(self) -> str:
        return "fine"

    async def _handle_undeliverable_message(self, message: Any) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.sync._handle_undeliverable_message(message)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where actors write what they are told."""
    return tmp_path / "said"


@pytest.fixture
def gone(spawn_procs: Spawn, path: Path) -> Any:
    """An actor that has stopped itself, of which nobody but itself knows that."""
    leaf = spawn_procs(name="far").spawn("gone", Leaf, str(path.with_suffix(".leaf")))
    leaf.leave.call_one().get(timeout=60)
    while (error := leaf.pid.call_one().exception(timeout=60)) is None:
        pass
    assert "I have had enough" in str(error)
    return leaf


def read(path: Path, sender: Any) -> str:
    """The line that a handler has written; calls keep it taking messages until then."""
    while not path.exists() or not path.read_text().endswith("\n"):
        assert sender.fine.call_one().get(timeout=60) == "fine"
    return path.read_text()


@pytest.mark.parametrize("kind", [Handling, AsyncHandling])
def test_the_hook_of_the_sender_is_given_who_to_whom_and_why_and_the_sender_lives(
    spawn_procs: Spawn, path: Path, gone: Any, kind: type[Any]
) -> None:
    sender = spawn_procs(name="near").spawn("sender", kind, True, str(path))
    sender.send.call_one(gone, "pid").get(timeout=60)
    who, to, why = read(path, sender).strip().split(" | ")
    assert "/sender#" in who
    assert "/gone#" in to
    assert why == f"a message to Leaf.pid on far was not delivered: {STOPPED}"
    assert sender.fine.call_one().get(timeout=60) == "fine"


@pytest.mark.parametrize(
    ("kind", "handled", "said"),
    [
        (Sender, None, "so Sender on near, its owner, failed"),
        (Handling, False, "so Handling on near, its owner, failed"),
        (Handling, KeyError("no"), "so Handling._handle_undeliverable_message on near died of Key"),
        (AsyncHandling, False, "so AsyncHandling on near, its owner, failed"),
    ],
)
def test_a_message_that_is_not_handled_is_a_failure_of_its_sender(
    spawn_procs: Spawn, faults: Faults, path: Path, gone: Any, kind: type[Any], handled: Any,
    said: str,
) -> None:  # fmt: skip
    sender = spawn_procs(name="near").spawn("sender", kind, handled, str(path))
    sender.send.call_one(gone, "pid").get(timeout=60)
    fault = faults.take()
    assert fault.mesh_name == "sender"
    report = fault.report()
    assert report.startswith(f"a message to Leaf.pid on far was not delivered: {STOPPED}")
    assert said.replace("its owner", "its sender") in report
    with pytest.raises(SupervisionError, match="was not delivered"):
        sender.fine.call_one().get(timeout=60)


def test_one_of_the_client_goes_to_its_fault_hook(faults: Faults, gone: Any) -> None:
    gone.pid.broadcast()
    (failure,) = faults.take().failures
    assert failure.kind == "undeliverable"
    assert (failure.actor_class, failure.endpoint) == ("Leaf", "pid")
    assert STOPPED in failure.message


def test_what_a_caller_is_told_by_an_error_does_not_come_back(
    spawn_procs: Spawn, faults: Faults, gone: Any
) -> None:
    with pytest.raises(SupervisionError, match="I have had enough"):
        gone.pid.call_one().get(timeout=60)
    port, receiver = Channel[int].open()
    send(gone.pid, (), {}, port)
    with pytest.raises(SupervisionError, match="I have had enough"):
        receiver.recv().get(timeout=60)
    assert faults.untaken() == []


@pytest.mark.parametrize("size", [1, 33])  # one by one, and as a cast
def test_messages_behind_the_one_that_ended_an_actor_are_told_to_its_owner_once(
    spawn_procs: Spawn, faults: Faults, path: Path, size: int
) -> None:
    leaf = spawn_procs({"gpus": size}, name="far").spawn("leaf", Leaf, str(path))
    leaf.pid.call().get(timeout=60)
    for method in ("fail", "pid", "pid", "pid"):
        try:
            getattr(leaf, method).broadcast()
        except SupervisionError:
            pass  # its failure was known by then
    told: set[int] = set()
    while len(told) < size:
        fault = faults.take()
        assert {failure.kind for failure in fault.failures} == {"nobody waited"}
        told |= {failure.rank for failure in fault.failures}
    for rank in range(size):
        with pytest.raises(SupervisionError, match="the leaf is ill"):
            leaf.slice(gpus=rank).pid.call_one().get(timeout=60)
    assert faults.untaken() == []


def test_an_owner_that_handles_the_failure_is_not_troubled_by_what_came_back(
    spawn_procs: Spawn, path: Path
) -> None:
    owner = spawn_procs(name="above").spawn("owner", Owner, str(path), "owner", True)
    owner.own.call_one(1, Leaf).get(timeout=60)
    owner.do.call_one("fail", way="broadcast").get(timeout=60)
    for _ in range(3):  # while it is not known, they are sent
        owner.do.call_one("pid", way="broadcast").exception(timeout=60)
    while not owner.told.call_one().get(timeout=60):
        pass
    assert owner.fine.call_one().get(timeout=60) == "fine"


@pytest.mark.parametrize("kind", [Handling, AsyncHandling])
def test_so_does_what_is_sent_to_a_port_that_nobody_reads_any_more(
    spawn_procs: Spawn, path: Path, kind: type[Any]
) -> None:
    sender = spawn_procs(name="near").spawn("sender", kind, True, str(path))
    port, receiver = Channel[int].open()
    sender.send_to.call_one(port).get(timeout=60)
    assert receiver.recv().get(timeout=60) == 1
    del receiver
    sender.send_to.call_one(port).get(timeout=60)
    _, to, why = read(path, sender).strip().split(" | ")
    assert f"/port {port.number}" in to
    said = f"a message to port {port.number} on client was not delivered: its receiver is gone"
    assert why == said


def test_and_to_a_port_of_a_process_that_is_gone(
    spawn_procs: Spawn, faults: Faults, path: Path
) -> None:
    keeper = spawn_procs(name="far").spawn("keeper", PortKeeper)
    port = keeper.port.call_one().get(timeout=60)
    sender = spawn_procs(name="near").spawn("sender", Handling, True, str(path))
    sender.send_to.call_one(port).get(timeout=60)
    keeper.die.call_one().exception(timeout=60)
    faults.take()
    while not path.exists():
        sender.send_to.call_one(port).get(timeout=60)
    assert "was not delivered: its process is gone" in read(path, sender)


class PortKeeper(Actor):
    """Reads a port."""

    @endpoint
    def port(self) -> Any:
        port, self.receiver = Channel[int].open()
        return port

    @endpoint
    def die(self) -> None:
        import os

        os._exit(1)
