"""What escapes an actor: who is told, and who lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    Port,
    ProcMesh,
    SupervisionError,
    concurrent_endpoint,
    endpoint,
    send,
)
from tests.conftest import Faults
from tests.integration.failing_actors import BadConstructor
from tests.integration.gates import Gate, GateKeeper
from tests.integration.sample_actors import Echo, append

Spawn = Callable[..., ProcMesh]

ESCAPES: dict[str, Callable[[], BaseException]] = {
    "exception": lambda: ValueError("wrong"),
    "interrupt": lambda: KeyboardInterrupt("wrong"),
    "exit": lambda: SystemExit("wrong"),
    "cancelled": lambda: asyncio.CancelledError("wrong"),
    "base": lambda: BaseException("wrong"),
}


class Raising(Actor):
    """Raises."""

    def __init__(self, path: str = "") -> None:
        self.path = path

    @endpoint
    def throw(self, what: str) -> None:
        raise ESCAPES[what]()

    @endpoint(explicit_response_port=True)
    def throw_by_port(self, port: Port[int], what: str) -> None:
        raise ESCAPES[what]()

    @endpoint
    def fine(self) -> str:
        return "fine"

    def __cleanup__(self, exception: BaseException | None) -> None:
        if self.path:
            append(self.path, repr(exception))


class AsyncRaising(Actor):
    """The same on an event loop."""

    def __init__(self, path: str = "") -> None:
        self.path = path

    @endpoint
    async def throw(self, what: str) -> None:
        await asyncio.sleep(0)
        raise ESCAPES[what]()

    @endpoint(explicit_response_port=True)
    async def throw_by_port(self, port: Port[int], what: str) -> None:
        await asyncio.sleep(0)
        raise ESCAPES[what]()

    @endpoint
    async def fine(self) -> str:
        return "fine"

    async def __cleanup__(self, exception: BaseException | None) -> None:
        if self.path:
            append(self.path, repr(exception))


class OverlappingRaising(Actor):
    """The same, where calls overlap."""

    def __init__(self, path: str = "") -> None:
        self.path = path

    @concurrent_endpoint
    async def throw(self, what: str) -> None:
        await asyncio.sleep(0)
        raise ESCAPES[what]()

    @concurrent_endpoint(explicit_response_port=True)
    async def throw_by_port(self, port: Port[int], what: str) -> None:
        await asyncio.sleep(0)
        raise ESCAPES[what]()

    @concurrent_endpoint
    async def fine(self) -> str:
        return "fine"

    async def __cleanup__(self, exception: BaseException | None) -> None:
        if self.path:
            append(self.path, repr(exception))


KINDS = [Raising, AsyncRaising, OverlappingRaising]


@pytest.fixture
def two(spawn_procs: Spawn) -> ProcMesh:
    """Two procs, of which actors may die."""
    return spawn_procs({"gpus": 2}, name="two")


# --- an Exception, and somebody waits -------------------------------------------------------------


def answer_of(way: str, mesh: Any) -> Any:
    """The future of a call of `throw` on rank 1, made in that way."""
    one = mesh.slice(gpus=1)
    match way:
        case "call":
            return mesh.throw.call("exception")
        case "call_one":
            return one.throw.call_one("exception")
        case "choose":
            return one.throw.choose("exception")
        case "stream":
            return next(mesh.throw.stream("exception"))
        case "accumulate":
            return Accumulator(mesh.throw, 0, max).accumulate("exception")
        case _:
            port, receiver = Channel[Any].open()
            send(one.throw, ("exception",), {}, port)
            return receiver.recv()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["call", "call_one", "choose", "stream", "accumulate", "send"])
def test_an_exception_goes_to_who_waits_and_the_actor_lives(
    four: ProcMesh, kind: type[Any], way: str
) -> None:
    mesh = four.spawn("raising", kind)
    with pytest.raises(ActorError) as caught:
        answer_of(way, mesh).get(timeout=60)
    error = caught.value
    assert type(error.exception) is ValueError
    assert error.exception.args == ("wrong",)
    assert f"{kind.__name__}.throw on workers[gpus=" in error.message
    assert "raised ValueError: wrong" in error.message
    assert "raise ESCAPES[what]()" in error.failures[0].traceback
    assert mesh.fine.call().get().values() == ["fine"] * 4


# --- an Exception, and nobody waits ---------------------------------------------------------------


def throw_to_nobody(way: str, mesh: Any) -> None:
    """Let rank 1 raise where nobody waits for an answer."""
    one = mesh.slice(gpus=1)
    match way:
        case "broadcast":
            one.throw.broadcast("exception")
        case "send":
            send(one.throw, ("exception",), {})
        case _:
            one.throw_by_port.broadcast("exception")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["broadcast", "send", "broadcast by port"])
def test_an_exception_that_nobody_waits_for_ends_the_actor_and_tells_its_owner(
    two: ProcMesh, faults: Faults, kind: type[Any], way: str, tmp_path: Path
) -> None:
    path = tmp_path / "said"
    mesh = two.spawn("raising", kind, str(path))
    throw_to_nobody(way, mesh)
    fault = faults.take()
    (failure,) = fault.failures
    assert (fault.mesh_name, failure.kind, failure.rank) == ("raising", "nobody waited", 1)
    assert (failure.exception_type, failure.message) == ("ValueError", "wrong")
    assert path.read_text() == "ValueError('wrong')\n", "clean-up is given the exception"
    with pytest.raises(SupervisionError, match=r"on two\[gpus=1\] died of ValueError: wrong"):
        mesh.fine.call().get(timeout=60)
    assert mesh.slice(gpus=0).fine.call_one().get() == "fine"


@pytest.mark.parametrize("kind", KINDS)
def test_who_waits_for_an_explicit_port_is_told_of_the_death(
    two: ProcMesh, faults: Faults, kind: type[Any]
) -> None:
    mesh = two.spawn("raising", kind)
    with pytest.raises(SupervisionError, match=r"throw_by_port on two\[gpus=0\] died of Value"):
        mesh.slice(gpus=0).throw_by_port.call_one("exception").get(timeout=60)
    assert faults.take().failures[0].rank == 0
    assert mesh.slice(gpus=1).fine.call_one().get() == "fine"


# --- a BaseException ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["interrupt", "exit", "cancelled", "base"])
def test_a_base_exception_ends_the_actor_though_somebody_waits(
    two: ProcMesh, faults: Faults, kind: type[Any], what: str, tmp_path: Path
) -> None:
    path = tmp_path / "said"
    mesh, echo = two.spawn("raising", kind, str(path)), two.spawn("echo", Echo)
    died_of = f"died of {type(ESCAPES[what]()).__name__}: wrong"
    with pytest.raises(SupervisionError, match=died_of) as caught:
        mesh.slice(gpus=1).throw.call_one(what).get(timeout=60)
    assert caught.value.failures[0].endpoint == "throw"
    assert died_of in faults.take().report()
    assert path.read_text() == f"{ESCAPES[what]()!r}\n"
    with pytest.raises(SupervisionError, match=died_of):
        mesh.slice(gpus=1).fine.call_one().get(timeout=60)
    assert mesh.slice(gpus=0).fine.call_one().get() == "fine"
    assert echo.rank.call().get().values() == [0, 1], "its process lives"


class Overlapping(Actor):
    """Calls that wait, and one that ends them all."""

    @concurrent_endpoint
    async def wait_for_ever(self, gate: Gate) -> None:
        await asyncio.to_thread(gate.pass_through)
        await asyncio.Event().wait()

    @concurrent_endpoint
    async def throw(self, what: str) -> None:
        raise ESCAPES[what]()

    @concurrent_endpoint
    async def cancel_itself(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)


def test_overlapping_calls_of_an_actor_that_dies_are_told_of_its_death(
    two: ProcMesh, faults: Faults, gate: GateKeeper
) -> None:
    mesh = two.slice(gpus=0).spawn("overlapping", Overlapping)
    waiting = [mesh.wait_for_ever.call_one(gate.gate) for _ in range(5)]
    gate.wait_entered(5)
    gate.open(5)
    with pytest.raises(SupervisionError, match=r"Overlapping.throw on .* died of SystemExit"):
        mesh.throw.call_one("exit").get(timeout=60)
    for answer in waiting:
        with pytest.raises(SupervisionError, match="died of SystemExit: wrong"):
            answer.get(timeout=60)
    faults.take()


def test_a_call_that_cancels_itself_ends_its_actor_as_any_base_exception_does(
    two: ProcMesh, faults: Faults
) -> None:
    mesh = two.slice(gpus=0).spawn("overlapping", Overlapping)
    with pytest.raises(SupervisionError, match=r"cancel_itself on .* died of CancelledError"):
        mesh.cancel_itself.call_one().get(timeout=60)
    assert "CancelledError" in faults.take().report()


# --- a constructor --------------------------------------------------------------------------------


class BadAsyncConstructor(Actor):
    """Never lives."""

    def __init__(self) -> None:
        raise LookupError("no data here")

    @endpoint
    async def rank(self) -> int:
        return 0


class ExitingConstructor(Actor):
    """Never lives either."""

    def __init__(self) -> None:
        raise SystemExit(4)

    @endpoint
    def rank(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (BadConstructor, "BadConstructor.__init__ on workers.* raised LookupError: no data"),
        (BadAsyncConstructor, "BadAsyncConstructor.__init__ .* raised LookupError: no data here"),
        (ExitingConstructor, "ExitingConstructor.__init__ on workers.* raised SystemExit: 4"),
    ],
)
def test_what_a_constructor_raises_is_told_on_first_use_with_its_traceback(
    four: ProcMesh, faults: Faults, kind: type[Any], said: str
) -> None:
    mesh = four.spawn("bad", kind)
    for answer in (mesh.rank.call(), mesh.rank.choose(), mesh.initialized):
        with pytest.raises(SupervisionError, match=said) as caught:
            answer.get(timeout=60)
        assert caught.value.failures[0].kind == "constructor"
        assert "in __init__" in str(caught.value)
    assert four.spawn("echo", Echo).rank.call().get().values() == [0, 1, 2, 3]
    faults.take_ranks({0, 1, 2, 3})
