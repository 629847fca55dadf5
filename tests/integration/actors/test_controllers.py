"""Controllers, and actors that live in the client or next to another actor."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    ProcMesh,
    SupervisionError,
    endpoint,
    get_or_spawn_controller,
    this_host,
    this_proc,
)
from tests.integration.gates import Gate, GateKeeper
from tests.integration.programs import run


class Registry(Actor):
    """Keeps names."""

    def __init__(self, first: str = "") -> None:
        self.names = [first] if first else []

    @endpoint
    def add(self, name: str) -> list[str]:
        self.names.append(name)
        return self.names

    @endpoint
    def at_gate(self, gate: Gate) -> None:
        gate.pass_through()

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def spawn_and_call(self) -> int:
        procs = this_host().spawn_procs({"gpus": 2})
        pids = procs.spawn("inner", Registry).pid.call().get(timeout=60).values()
        procs.stop().get(timeout=60)
        return len(set(pids))


class User(Actor):
    """Uses a controller from a proc."""

    @endpoint
    def register(self, controller: str, name: str) -> list[str]:
        return (
            get_or_spawn_controller(controller, Registry).get(timeout=60).add.call_one(name).get()
        )

    @endpoint
    def neighbour_is_here(self) -> bool:
        neighbour = this_proc().spawn("neighbour", Registry)
        return neighbour.pid.call_one().get(timeout=60) == os.getpid()


class Asking(Actor):
    """Asks for a controller with a class that it has not."""

    @endpoint
    def other_class(self, controller: str) -> list[str]:
        found: Any = get_or_spawn_controller(controller, Asking).get(timeout=60)
        return found.add.call_one("three").get(timeout=60)


class Refusing(Actor):
    """Can't be made unless told so."""

    def __init__(self, fine: bool) -> None:
        if not fine:
            raise ValueError("not today")

    @endpoint
    def fine(self) -> bool:
        return True


def test_a_controller_lives_in_the_client_and_the_first_to_ask_makes_it() -> None:
    made = get_or_spawn_controller("first wins", Registry, "one").get(timeout=60)
    again = get_or_spawn_controller("first wins", Registry, "two").get(timeout=60)
    assert made.pid.call_one().get(timeout=60) == os.getpid()
    assert again.add.call_one("three").get(timeout=60) == ["one", "three"]


def test_actors_on_procs_share_the_controller(four: ProcMesh) -> None:
    users = four.spawn("users", User)
    users.register.call("shared", "proc").get(timeout=60)
    mine = get_or_spawn_controller("shared", Registry).get(timeout=60)
    assert mine.add.call_one("client").get(timeout=60) == [*["proc"] * 4, "client"]


def test_a_controller_that_cannot_be_made_fails_who_asked_and_no_one_else(faults: Any) -> None:
    with pytest.raises(SupervisionError, match="not today"):
        get_or_spawn_controller("moody", Refusing, False).get(timeout=60)
    better = get_or_spawn_controller("moody", Refusing, True).get(timeout=60)
    assert better.fine.call_one().get(timeout=60)


def test_who_asks_with_another_class_gets_the_controller_that_is_there(four: ProcMesh) -> None:
    get_or_spawn_controller("theirs", Registry, "one").get(timeout=60)
    found: Any = get_or_spawn_controller("theirs", Refusing, True).get(timeout=60)
    assert found.add.call_one("two").get(timeout=60) == ["one", "two"]
    assert not hasattr(found, "fine")
    user = four.slice(gpus=0).spawn("asking", Asking)
    assert user.other_class.call_one("theirs").get(timeout=60) == ["one", "two", "three"]


def test_so_does_who_asks_an_async_one_for_a_sync_one(tmp_path: Path) -> None:
    program = """
from monarch.actor import Actor, endpoint, get_or_spawn_controller

class Awaiting(Actor):
    @endpoint
    async def who(self):
        return "the first"

class Blocking(Actor):
    @endpoint
    def what(self): ...

get_or_spawn_controller("one", Awaiting).get(timeout=60)
print(get_or_spawn_controller("one", Blocking).get(timeout=60).who.call_one().get(timeout=60))
"""
    assert run(tmp_path, program) == (0, "the first\n", "")


def test_a_controller_may_own_meshes() -> None:
    keeper = get_or_spawn_controller("owner", Registry).get(timeout=60)
    assert keeper.spawn_and_call.call_one().get(timeout=60) == 2


def test_a_controller_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        get_or_spawn_controller("", Registry)


def test_this_proc_in_an_actor_is_its_own_process(four: ProcMesh) -> None:
    users = four.spawn("users", User)
    assert users.neighbour_is_here.call().get(timeout=60).values() == [True] * 4


def test_this_proc_in_the_client_is_the_client() -> None:
    here = this_proc().spawn("here", Registry)
    assert here.pid.call_one().get(timeout=60) == os.getpid()
    assert dict(this_proc().extent) == {}


class Careless(Actor):
    """Uses a controller, and fails in the middle."""

    @endpoint
    def use(self, controller: str, gate: Gate, how: str) -> None:
        registry = get_or_spawn_controller(controller, Registry).get(timeout=60)
        registry.add.call_one(how).get(timeout=60)
        waits = registry.at_gate.call_one(gate)
        if how == "raises":
            raise ValueError("I have lost interest")
        waits.get(timeout=60)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def again(self, controller: str) -> list[str]:
        return get_or_spawn_controller(controller, Registry).get().add.call_one("user").get()


def test_a_controller_survives_users_that_raise_and_users_that_die_while_it_works_for_them(
    spawn_procs: Any, faults: Any, gate: GateKeeper
) -> None:
    registry = get_or_spawn_controller("survivor", Registry, "first").get(timeout=60)
    careless = spawn_procs({"gpus": 2}, name="users").spawn("careless", Careless)
    raising = careless.slice(gpus=0).use.call_one("survivor", gate.gate, "raises")
    with pytest.raises(ActorError, match="I have lost interest"):
        raising.get(timeout=60)
    gate.wait_entered()  # it works for one that does not wait any more
    gate.open()
    pid = careless.slice(gpus=1).pid.call_one().get(timeout=60)
    dying = careless.slice(gpus=1).use.call_one("survivor", gate.gate, "dies")
    gate.wait_entered()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError, match="killed by SIGKILL"):
        dying.get(timeout=60)
    faults.take()
    gate.open()
    names = ["first", "raises", "dies", "client"]
    assert registry.add.call_one("client").get(timeout=60) == names
    assert careless.slice(gpus=0).again.call_one("survivor").get(timeout=60) == [*names, "user"]
