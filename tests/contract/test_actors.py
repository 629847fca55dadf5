"""Defining actors: what a class says, and how it then runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from monarch.actor import (
    Actor,
    ActorMesh,
    MeshStoppedError,
    Port,
    ProcMesh,
    SupervisionError,
    concurrent_endpoint,
    endpoint,
)
from monarch.frontend import call_target_of
from monarch.observe import metrics
from tests.conftest import Faults
from tests.integration.gates import Gate, GateKeeper
from tests.integration.sample_actors import append

Spawn = Callable[..., ProcMesh]


# --- how endpoints are marked ---------------------------------------------------------------------


class Marked(Actor):
    """An endpoint in every way to write one."""

    @endpoint
    def bare(self) -> str:
        return "bare"

    @endpoint()
    def called(self) -> str:
        return "called"

    @endpoint(instrument=False)
    def uninstrumented(self) -> str:
        return "uninstrumented"

    @endpoint(propagate="inspect")
    def propagating(self) -> str:
        return "propagating"

    @endpoint(propagate=None, explicit_response_port=True, instrument=True)
    def all_options(self, port: Port[str]) -> None:
        port.send("all options")


class Titled(Actor):
    """An endpoint with the name of what a mesh could tell of itself."""

    @endpoint
    def name(self) -> str:
        return "what the endpoint says"


def test_an_endpoint_is_marked_with_and_without_options(four: ProcMesh) -> None:
    marked = four.slice(gpus=0).spawn("marked", Marked)
    assert marked.bare.call_one().get() == "bare"
    assert marked.called.call_one().get() == "called"
    assert marked.uninstrumented.call_one().get() == "uninstrumented"
    assert marked.propagating.call_one().get() == "propagating"
    assert marked.all_options.call_one().get() == "all options"


@pytest.mark.parametrize("what", [Actor, staticmethod(len), classmethod(len), 3], ids=str)  # pyright: ignore[reportArgumentType]
@pytest.mark.parametrize("mark", [endpoint, concurrent_endpoint], ids=["endpoint", "concurrent"])
def test_what_is_no_method_cannot_be_an_endpoint(mark: Any, what: Any) -> None:
    with pytest.raises(TypeError):
        mark(what)


class Overlapping(Actor):
    """Concurrent endpoints with options; each can only end when another has begun."""

    def __init__(self) -> None:
        self.waiting: Port[str] | None = None

    @concurrent_endpoint(explicit_response_port=True)
    async def answer_later(self, port: Port[str]) -> None:
        self.waiting = port
        await asyncio.Event().wait()

    @concurrent_endpoint(instrument=False)
    async def answer_for_the_other(self) -> str:
        assert self.waiting is not None
        self.waiting.send("from the other")
        return "mine"


def test_a_concurrent_endpoint_takes_the_options_of_an_endpoint(four: ProcMesh) -> None:
    overlapping = four.slice(gpus=0).spawn("overlapping", Overlapping)
    first = overlapping.answer_later.call_one()
    assert overlapping.answer_for_the_other.call_one().get() == "mine"
    assert first.get() == "from the other"
    overlapping.stop().get()


def test_a_concurrent_endpoint_wraps_no_endpoint() -> None:
    with pytest.raises(ValueError, match="method is an endpoint already"):

        @concurrent_endpoint  # type: ignore[arg-type]
        @endpoint
        async def method(self: Any) -> None: ...


def test_a_concurrent_endpoint_with_options_is_for_async_methods_only() -> None:
    with pytest.raises(ValueError, match="concurrent_endpoint needs an `async def`"):

        @concurrent_endpoint(instrument=False)
        def plain(self: object) -> None: ...


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(n for n in dir(ActorMesh) if not n.startswith("_")))
def test_every_name_that_a_mesh_has_is_refused_as_that_of_an_endpoint(
    four: ProcMesh, name: str
) -> None:
    def method(self: object) -> None: ...

    method.__name__ = name
    cls = type("Named", (Actor,), {name: endpoint(method)})
    with pytest.raises(ValueError, match=f"Named.{name}: a mesh of actors has its own {name!r}"):
        four.spawn("named", cls)
    assert "named" not in four.actor_names


@pytest.mark.parametrize("name", ["class_name", "name", "procs", "region", "uid", "check_usable"])
def test_an_endpoint_may_have_any_name_that_not_every_mesh_has(four: ProcMesh, name: str) -> None:
    def method(self: object, number: int) -> int:
        return number + 1

    method.__name__ = name
    cls = type("Named", (Actor,), {name: endpoint(method)})
    named = four.spawn(f"with_{name}", cls)
    found = getattr(named.slice(gpus=slice(1, 3)), name).call(1).get(timeout=60)
    assert found.values() == [2, 2]
    assert repr(named) == f"<ActorMesh 'with_{name}': Named[gpus=4] on 'workers'>"
    assert {seen.endpoint for seen in metrics(named).endpoints} == {name}
    with pytest.raises(TypeError, match=f"Named.{name}"):
        getattr(named, name).call()
    cast("ActorMesh", named).stop().get(timeout=60)
    with pytest.raises(MeshStoppedError, match=f"the actor mesh 'with_{name}'"):
        getattr(named, name).call(1)


def test_a_mesh_tells_who_its_actors_are_unless_an_endpoint_has_that_name(four: ProcMesh) -> None:
    mesh = cast("ActorMesh", four.spawn("marked", Marked))
    assert (mesh.name, mesh.class_name, mesh.procs.name) == ("marked", "Marked", "workers")
    assert {"name", "class_name", "procs", "uid", "region"} <= set(dir(mesh))
    assert len(dir(mesh)) == len(set(dir(mesh)))
    titled = four.slice(gpus=0).spawn("titled", Titled)
    assert titled.name.call_one().get(timeout=60) == "what the endpoint says"
    as_mesh = cast("ActorMesh", titled)
    assert (as_mesh.class_name, call_target_of(as_mesh).name) == ("Titled", "titled")


def test_a_class_is_refused_before_anything_is_sent(run_python: Callable[..., str]) -> None:
    program = """
import psutil
from monarch.actor import Actor, endpoint, get_or_spawn_controller

class Mixed(Actor):
    @endpoint
    def one(self): ...
    @endpoint
    async def two(self): ...

try:
    get_or_spawn_controller("mixed", Mixed)
except ValueError as error:
    print(str(error).split(" ")[0:2], len(psutil.Process().children()))
"""
    assert run_python(program) == "['Mixed', 'mixes'] 0\n"


# --- how they run ---------------------------------------------------------------------------------


class Alone(Actor):
    """Says whether it was ever entered twice at a time."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0

    @endpoint
    def enter(self, gate: Gate) -> int:
        self.inside += 1
        self.most = max(self.most, self.inside)
        gate.pass_through()
        self.inside -= 1
        return self.most


def test_a_sync_actor_takes_one_message_at_a_time_whoever_sends(
    four: ProcMesh, gate: GateKeeper
) -> None:
    alone = four.slice(gpus=0).spawn("alone", Alone)
    most: list[int] = []
    threads = [
        threading.Thread(target=lambda: most.append(alone.enter.call_one(gate.gate).get()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:  # all eight have been sent; each is let out when it is in
        gate.wait_entered()
        gate.open()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 8


class Tidying(Actor):
    """Says in which order it ends."""

    def __init__(self, path: str) -> None:
        self.path = path

    @concurrent_endpoint
    async def wait_for_ever(self, gate: Gate) -> None:
        try:
            await asyncio.to_thread(gate.pass_through)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # an awaited one comes to its end
            append(self.path, "cancelled")

    @endpoint
    async def fail(self) -> None:
        raise ValueError("enough")

    async def __cleanup__(self, exception: BaseException | None) -> None:
        append(self.path, f"cleaned up after {exception!r}")


@pytest.mark.parametrize(
    ("how", "after"),
    [
        ("stop", "None"),
        ("broadcast", "ValueError('enough')"),
    ],
)
def test_overlapping_calls_are_cancelled_and_awaited_before_clean_up(
    spawn_procs: Spawn, tmp_path: Path, gate: GateKeeper, faults: Faults, how: str, after: str
) -> None:
    path = tmp_path / "said"
    tidying = spawn_procs().spawn("tidying", Tidying, str(path))
    answers = [tidying.wait_for_ever.call_one(gate.gate) for _ in range(3)]
    gate.wait_entered(3)
    gate.open(3)
    if how == "stop":
        tidying.stop().get(timeout=60)
    else:
        tidying.fail.broadcast()
        assert "enough" in faults.take().report()
    for answer in answers:
        with pytest.raises(SupervisionError, match="stopped" if how == "stop" else "enough"):
            answer.get(timeout=60)
    assert path.read_text().splitlines() == [*["cancelled"] * 3, f"cleaned up after {after}"]


# --- endpoints that answer through a port ---------------------------------------------------------


class ByPort(Actor):
    """Returns what nobody sees."""

    @endpoint(explicit_response_port=True)  # pyright: ignore[reportCallIssue, reportArgumentType]
    def answer_and_return(self, port: Port[str], value: str) -> str:
        port.send(value)
        return "dropped"

    @endpoint(explicit_response_port=True)
    def return_a_lock(self, port: Port[str]) -> Any:
        port.send("sent")
        return threading.Lock()

    @endpoint(explicit_response_port=True)
    def raise_as_it_is(self, port: Port[str]) -> None:
        port.exception(LookupError("as it is", 7))


class AsyncByPort(Actor):
    """The same on an event loop."""

    @endpoint(explicit_response_port=True)  # pyright: ignore[reportCallIssue, reportArgumentType]
    async def answer_and_return(self, port: Port[str], value: str) -> str:
        port.send(value)
        return "dropped"

    @endpoint(explicit_response_port=True)
    async def return_a_lock(self, port: Port[str]) -> Any:
        port.send("sent")
        return threading.Lock()

    @endpoint(explicit_response_port=True)
    async def raise_as_it_is(self, port: Port[str]) -> None:
        port.exception(LookupError("as it is", 7))


@pytest.mark.parametrize("kind", [ByPort, AsyncByPort])
def test_what_an_endpoint_with_a_port_returns_is_dropped(four: ProcMesh, kind: type[Any]) -> None:
    by_port = four.spawn("by_port", kind)
    assert by_port.answer_and_return.call("sent").get().values() == ["sent"] * 4
    assert by_port.return_a_lock.call().get().values() == ["sent"] * 4
    assert by_port.slice(gpus=1).answer_and_return.call_one("again").get() == "again"


@pytest.mark.parametrize("kind", [ByPort, AsyncByPort])
def test_a_port_raises_the_exception_itself_and_its_actor_lives(
    four: ProcMesh, kind: type[Any]
) -> None:
    by_port = four.spawn("by_port", kind)
    for answer in (
        by_port.raise_as_it_is.call(),
        by_port.raise_as_it_is.choose(),
        by_port.slice(gpus=2).raise_as_it_is.call_one(),
        *by_port.raise_as_it_is.stream(),
    ):
        error = answer.exception(timeout=60)
        assert type(error) is LookupError
        assert error.args == ("as it is", 7)
    assert by_port.answer_and_return.call("alive").get().values() == ["alive"] * 4
