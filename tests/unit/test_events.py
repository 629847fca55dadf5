"""The bus: who listens is told, in order, and nobody can spoil it for others."""

from __future__ import annotations

import threading

import pytest

from monarch._src.events import Bus, MeshSpawned, MeshStopped, Output
from tests.runtime_logs import RuntimeErrors

SPAWNED, STOPPED = MeshSpawned("5", "workers"), MeshStopped("5", "workers")


@pytest.fixture
def bus() -> Bus:
    return Bus()


def test_listeners_are_told_of_the_kind_they_asked_for_in_the_order_they_came(bus: Bus) -> None:
    told: list[tuple[str, object]] = []
    bus.subscribe(MeshSpawned, lambda event: told.append(("first", event)))
    bus.subscribe(MeshSpawned, lambda event: told.append(("second", event)))
    bus.subscribe(MeshStopped, lambda event: told.append(("other", event)))
    bus.emit(SPAWNED)
    bus.emit(STOPPED)
    assert told == [("first", SPAWNED), ("second", SPAWNED), ("other", STOPPED)]


def test_who_has_ended_it_is_not_told(bus: Bus) -> None:
    told: list[object] = []
    end = bus.subscribe(MeshSpawned, told.append)
    bus.emit(SPAWNED)
    end()
    end()
    bus.emit(SPAWNED)
    assert told == [SPAWNED]


def test_a_listener_that_asked_twice_is_told_twice_and_each_ends_for_itself(bus: Bus) -> None:
    told: list[object] = []

    def listener(event: MeshSpawned) -> None:
        told.append(event)

    end_first = bus.subscribe(MeshSpawned, listener)
    end_second = bus.subscribe(MeshSpawned, listener)
    bus.emit(SPAWNED)
    assert len(told) == 2
    end_first()
    end_first()
    bus.emit(SPAWNED)
    assert len(told) == 3
    end_second()
    bus.emit(SPAWNED)
    assert len(told) == 3


def test_a_listener_that_raises_is_said_and_the_others_are_told(
    bus: Bus, runtime_errors: RuntimeErrors
) -> None:
    told: list[object] = []

    def raises(event: MeshSpawned) -> None:
        raise ValueError("in the listener")

    bus.subscribe(MeshSpawned, raises)
    bus.subscribe(MeshSpawned, told.append)
    bus.emit(SPAWNED)
    assert told == [SPAWNED]
    (said,) = runtime_errors.take()
    assert "a listener for MeshSpawned raised" in said
    assert "in the listener" in said


def test_whether_anybody_listens_can_be_asked(bus: Bus) -> None:
    assert not bus.wanted(Output)
    end = bus.subscribe(Output, print)
    assert bus.wanted(Output)
    assert not bus.wanted(MeshSpawned)
    end()
    assert not bus.wanted(Output)


def test_a_listener_may_subscribe_and_end_while_it_is_told(bus: Bus) -> None:
    told: list[str] = []

    def once(event: MeshSpawned) -> None:
        told.append("once")
        end()
        bus.subscribe(MeshSpawned, lambda event: told.append("later"))

    end = bus.subscribe(MeshSpawned, once)
    bus.emit(SPAWNED)
    assert told == ["once"]
    bus.emit(SPAWNED)
    assert told == ["once", "later"]


def test_threads_may_subscribe_at_once(bus: Bus) -> None:
    told: list[object] = []

    def subscribes() -> None:
        for _ in range(200):
            bus.subscribe(MeshSpawned, told.append)

    threads = [threading.Thread(target=subscribes) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    bus.emit(SPAWNED)
    assert len(told) == 800
