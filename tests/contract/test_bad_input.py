"""Bad input: the error of the contract, at once, and the same mesh works afterwards."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    Extent,
    MeshStoppedError,
    ProcMesh,
    SupervisionError,
    as_endpoint,
    concurrent_endpoint,
    endpoint,
    get_or_spawn_controller,
    returns_future,
    send,
    this_host,
)
from monarch.config import configure
from tests.integration.failing_actors import BadConstructor, Failing
from tests.integration.sample_actors import Counter, Echo

Spawn = Callable[..., ProcMesh]


class Mixed(Actor):
    """Two kinds in one."""

    @endpoint
    def one(self) -> None: ...
    @endpoint
    async def two(self) -> None: ...


class MixedOverlapping(Actor):
    """Two kinds in one, though the async one overlaps."""

    @endpoint
    def one(self) -> None: ...
    @concurrent_endpoint
    async def two(self) -> None: ...


class NamedSize(Actor):
    """What a mesh has."""

    @endpoint
    def size(self) -> int:  # type: ignore[override]
        return 3


class NoActor:
    """Derived from nothing."""

    @endpoint
    def one(self) -> None: ...


class Meshes:
    """What a case may spoil: procs two by three, and actors on all of them."""

    def __init__(self, procs: ProcMesh) -> None:
        self.procs = procs
        self.echo: Any = procs.spawn("echo", Echo)  # of no type: cases call it wrongly
        self.failing = procs.spawn("failing", Failing)
        self.stopped = procs.spawn("stopped", Counter)
        self.stopped.stop().get(timeout=60)

    def check_usable(self) -> None:
        """That every adverb still works on all of it, and new actors can be made."""
        assert self.echo.rank.call().get(timeout=60).values() == list(range(6))
        assert self.echo.slice(a=1, b=0).same.call_one("x").get(timeout=60) == "x"
        assert sorted(f.get(timeout=60) for f in self.echo.rank.stream()) == list(range(6))
        self.echo.same.broadcast(None)
        assert self.failing.fine.call().get(timeout=60).values() == ["fine"] * 6
        fresh = self.procs.spawn("fresh", Counter, 3)
        assert fresh.add.call(1).get(timeout=60).values() == [4] * 6
        fresh.stop().get(timeout=60)


@pytest.fixture(scope="module")
def meshes(agent_errors: object) -> Iterator[Meshes]:
    procs = this_host().spawn_procs({"a": 2, "b": 3}, name="meshes")
    yield Meshes(procs)
    procs.stop().get(timeout=60)


Case = tuple[str, type[BaseException], str, Callable[[Meshes], Any]]
LOCK = threading.Lock()


def port() -> Any:
    """A port whose receiver lives as long as it does."""
    made, receiver = Channel[Any].open()
    return made, receiver


CASES: list[Case] = [
    # Arguments.
    ("too few", TypeError, "missing a required argument: 'first'",
     lambda m: m.echo.named.call()),
    ("too many", TypeError, "too many positional arguments",
     lambda m: m.echo.named.broadcast(1, 2, 3)),
    ("unknown name", TypeError, "unexpected keyword argument 'fourth'",
     lambda m: m.echo.named.stream(1, fourth=4)),
    ("twice", TypeError, "multiple values for argument 'first'",
     lambda m: m.echo.named.choose(1, first=1)),
    ("no adverb", TypeError, r"Echo\.named is an endpoint of a mesh.*\.named\.call\(",
     lambda m: m.echo.named(1)),
    ("too few, sent", TypeError, "missing a required argument",
     lambda m: send(m.echo.named, (), {})),
    ("too few, folded", TypeError, "missing a required argument",
     lambda m: Accumulator(m.echo.named, 0, max).accumulate()),
    ("too few for a constructor", TypeError, r"Counter.*got multiple values|too many",
     lambda m: m.procs.spawn("c", Counter, 1, 2, 3)),
    ("unpicklable", TypeError, "argument 'value' of type lock cannot be sent",
     lambda m: m.echo.same.call(LOCK)),
    ("unpicklable, nested", TypeError, r"argument 'args\[1\]' of type dict cannot be sent",
     lambda m: m.echo.all.call(1, {"deep": [LOCK]})),
    ("unpicklable, for a constructor", TypeError, "of type lock cannot be sent",
     lambda m: m.procs.spawn("c", Counter, LOCK)),
    ("unpicklable, through a port", TypeError, "a lock cannot be sent",
     lambda m: port()[0].send(LOCK)),
    ("unpicklable, on the way back", ActorError, "value that it returned, a lock, cannot be sent",
     lambda m: m.echo.unpicklable.call().get(timeout=60)),
    # Dims.
    ("unknown dim", TypeError, "no dim 'gpus'; there are dims a, b",
     lambda m: m.echo.slice(gpus=0)),
    ("unknown dim of procs", TypeError, "no dim 'gpus'",
     lambda m: m.procs.slice(gpus=0)),
    ("unknown dim of values", TypeError, "no dim 'gpus'",
     lambda m: m.echo.rank.call().get(timeout=60).slice(gpus=0)),
    ("out of range", IndexError, "a=2 is out of range",
     lambda m: m.echo.slice(a=2)),
    ("negative", IndexError, "a=-1",
     lambda m: m.echo.slice(a=-1)),
    ("empty", ValueError, "a=1:1",
     lambda m: m.echo.slice(a=slice(1, 1))),
    ("backwards", ValueError, "step -1",
     lambda m: m.echo.slice(a=slice(1, None, -1))),
    ("no rectangle, as a list", TypeError, "is a list; give an int or a slice",
     lambda m: m.echo.slice(a=[0, 1])),
    ("no rectangle, flattened", ValueError, "not at equal distances",
     lambda m: m.echo.slice(b=slice(0, 2)).flatten("ranks")),
    ("does not divide", ValueError, "can't be split",
     lambda m: m.echo.split(a=("x", "y"), y=3)),
    ("renamed twice", ValueError, "appears twice",
     lambda m: m.echo.rename(a="b")),
    ("unknown size", KeyError, "no dim 'gpus'",
     lambda m: m.echo.size("gpus")),
    ("unknown label", ValueError, "gpus",
     lambda m: Extent(["a"], [2])["gpus"]),
    ("dim that is no name", ValueError, "'two words' cannot name a dim",
     lambda m: this_host().spawn_procs({"two words": 2})),
    ("no process", ValueError, "at least one process",
     lambda m: this_host().spawn_procs({"a": 0})),
    ("dims that are no mapping", TypeError, r"per_host=\[8\]: give dims and sizes",
     lambda m: this_host().spawn_procs([8])),  # type: ignore[arg-type]
    ("item without coordinates", KeyError, "no coordinate for dim 'b'",
     lambda m: m.echo.rank.call().get(timeout=60).item(a=0)),
    # Adverbs.
    ("call_one on two", ValueError, r"call_one needs a mesh of one rank.*\{b: 3\}",
     lambda m: m.echo.slice(a=0).same.call_one()),
    ("no such endpoint", AttributeError, "Echo has no endpoint 'sam'",
     lambda m: m.echo.sam.call(1)),
    ("another selection", ValueError, "'all' or 'choose'",
     lambda m: send(m.echo.rank, (), {}, selection="any")),  # type: ignore[arg-type]
    ("no method of a mesh", ValueError, "a method of an actor mesh",
     lambda m: as_endpoint(print)),
    ("negative time-out", ValueError, "timeout=-1",
     lambda m: m.echo.rank.call().get(timeout=-1)),
    ("time-out that is no number", ValueError, "timeout=nan",
     lambda m: m.echo.rank.call().get(timeout=math.nan)),
    ("plain function", TypeError, "async def",
     lambda m: returns_future(print)),  # type: ignore[arg-type]
    # After stop.
    ("stopped, called", MeshStoppedError, "'stopped'.*has been stopped",
     lambda m: m.stopped.add.call(1)),
    ("stopped, sent to", MeshStoppedError, "has been stopped",
     lambda m: send(m.stopped.add, (1,), {})),
    ("stopped, a part", RuntimeError, "has been stopped",
     lambda m: m.stopped.slice(a=0).add.broadcast(1)),
    ("a part, stopped", ValueError, "stop the whole mesh 'meshes', not a slice",
     lambda m: m.procs.slice(a=0).stop()),
    # Classes.
    ("mixed kinds", ValueError, "Mixed mixes `async def` endpoints",
     lambda m: m.procs.spawn("x", Mixed)),
    ("mixed kinds, overlapping", ValueError, "MixedOverlapping mixes",
     lambda m: m.procs.spawn("x", MixedOverlapping)),
    ("named like the mesh", ValueError, "a mesh of actors has its own 'size'",
     lambda m: m.procs.spawn("x", NamedSize)),
    ("no actor", ValueError, "NoActor is no actor",
     lambda m: m.procs.spawn("x", NoActor)),  # type: ignore[type-var]
    ("no class", TypeError, "a class derived from Actor",
     lambda m: m.procs.spawn("x", "Echo")),  # type: ignore[type-var]
    ("name that is no text", TypeError, "the name of an actor mesh is text, not 3",
     lambda m: m.procs.spawn(3, Echo)),  # type: ignore[arg-type]
    ("name of procs that is no text", TypeError, "the name of a proc mesh is text, not 3",
     lambda m: this_host().spawn_procs(name=3)),  # type: ignore[arg-type]
    ("name of a controller", TypeError, "the name of a controller is text",
     lambda m: get_or_spawn_controller(None, Echo)),  # type: ignore[arg-type]
    ("mixed controller", ValueError, "Mixed mixes",
     lambda m: get_or_spawn_controller("mixed", Mixed)),
    ("reason that is no text", TypeError, "reason=3: give text, or None",
     lambda m: m.procs.stop(3)),  # type: ignore[arg-type]
    ("reason that is no text, of actors", TypeError, "reason=3",
     lambda m: m.echo.stop(3)),  # type: ignore[attr-defined]
    ("constructor that raises", SupervisionError, "no data for rank",
     lambda m: m.procs.spawn("bad", BadConstructor).rank.call().get(timeout=60)),
    # Exceptions.
    ("exception that cannot be rebuilt", ActorError, "raised Picky: one and two",
     lambda m: m.failing.raise_picky.call().get(timeout=60)),
    ("exception that cannot be pickled", ActorError, "raised HoldsALock: has a lock",
     lambda m: m.failing.raise_unpicklable.call().get(timeout=60)),
    ("exception that cannot speak", ActorError, "its text could not be made",
     lambda m: m.failing.raise_mute.call().get(timeout=60)),
    ("endless recursion", ActorError, "RecursionError",
     lambda m: m.failing.recurse.call().get(timeout=60)),
    # Settings.
    ("unknown setting", ValueError, "did you mean liveness",
     lambda m: configure(livenes=3)),
    ("setting of the wrong type", TypeError, "liveness='soon'",
     lambda m: configure(liveness="soon")),
    ("preload that is no module", TypeError, "preload",
     lambda m: this_host().spawn_procs(preload=[3])),  # type: ignore[list-item]
]  # fmt: skip


@pytest.mark.parametrize(("error", "said", "do"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_bad_input_is_refused_as_the_contract_says_and_the_mesh_is_usable_afterwards(
    meshes: Meshes,
    error: type[BaseException],
    said: str,
    do: Callable[[Meshes], Any],
    request: pytest.FixtureRequest,
) -> None:
    if "constructor that raises" in request.node.name:
        request.getfixturevalue("faults")
    with pytest.raises(error, match=said):
        do(meshes)
    meshes.check_usable()


def test_a_mesh_of_procs_used_after_stop_leaves_other_meshes_alone(
    meshes: Meshes, spawn_procs: Spawn
) -> None:
    procs = spawn_procs({"a": 2}, name="short")
    echo = procs.spawn("echo", Echo)
    procs.stop().get(timeout=60)
    for use in (
        echo.rank.call,
        echo.slice(a=0).rank.call_one,
        lambda: procs.spawn("echo", Echo),
        lambda: procs.initialized,
    ):
        with pytest.raises(RuntimeError, match="has been stopped"):
            use()
    meshes.check_usable()


def test_hundreds_of_bad_calls_in_flight_leave_the_mesh_as_it_was(meshes: Meshes) -> None:
    answers = []
    for number in range(300):
        answers.append(meshes.failing.raise_value_error.call(str(number)))
        with pytest.raises(TypeError):
            meshes.echo.named.call()
        with pytest.raises(ValueError, match="call_one"):
            meshes.echo.same.call_one(1)
    for number, answer in enumerate(answers):
        error = answer.exception(timeout=60)
        assert isinstance(error, ActorError)
        assert f"raised ValueError: {number}" in str(error)
    meshes.check_usable()
