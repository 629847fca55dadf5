"""Which actors of a process have its main thread, and which have a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, endpoint, this_host
from tests.conftest import Faults
from tests.integration.gates import Gate, GateKeeper


class Plain(Actor):
    """An actor as users write it."""

    @endpoint
    def is_on_main(self) -> bool:
        return on_main()


class Sharing(Plain):
    """An actor that runs code of the notebook."""

    __monarch_main_thread__ = "shared"

    def __init__(self, fails: bool = False) -> None:
        if fails:
            raise ValueError("made to fail")

    @endpoint
    def hold(self, gate: Gate) -> None:
        gate.pass_through()

    @endpoint
    def ask(self, other: Any) -> bool:
        return other.is_on_main.call_one().get(timeout=60)

    @endpoint
    def fail(self) -> None:
        raise SystemExit(3)

    @endpoint
    def map_there(self, procs: Any) -> list[bool]:
        return procs.map(on_main, range(2))


class Apart(Plain):
    """An actor that never has the main thread."""

    __monarch_main_thread__ = "never"


def on_main(_: object = None) -> bool:
    return threading.current_thread() is threading.main_thread()


@pytest.fixture
def one() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"gpus": 1}, name="workers")
    yield mesh
    mesh.stop().get(timeout=60)


def is_on_main(actors: Any) -> bool:
    return actors.is_on_main.call_one().get(timeout=60)


def test_the_first_actor_has_it_alone(one: ProcMesh) -> None:
    first, second, sharing = (
        one.spawn(name, kind) for name, kind in (("a", Plain), ("b", Plain), ("c", Sharing))
    )
    assert [is_on_main(each) for each in (first, second, sharing)] == [True, False, False]
    assert one.map(on_main, range(2)) == [False, False]
    first.stop().get(timeout=60)
    assert one.map(on_main, range(2)) == [True, True]


def test_actors_that_share_it_take_turns_in_any_order_of_their_ends(one: ProcMesh) -> None:
    apart = one.spawn("apart", Apart)
    assert not is_on_main(apart)
    sharing = [one.spawn(f"sharing{n}", Sharing) for n in range(3)]
    for ending in (1, 0, 2):
        assert all(is_on_main(each) for each in sharing)
        assert one.map(on_main, range(3)) == [True] * 3
        assert not is_on_main(one.spawn("plain", Plain))
        one.push(x=ending)
        sharing[ending].stop().get(timeout=60)
        sharing[ending] = one.spawn("again", Sharing)
        assert is_on_main(sharing[ending])
    for each in sharing:
        each.stop().get(timeout=60)
    assert is_on_main(one.spawn("plain", Plain))


def test_one_that_fails_leaves_it_to_the_others(one: ProcMesh, recorded_faults: Faults) -> None:
    sharing, failing = one.spawn("sharing", Sharing), one.spawn("failing", Sharing)
    assert is_on_main(sharing)
    with pytest.raises(Exception, match="made to fail"):
        is_on_main(one.spawn("unmade", Sharing, True))
    with pytest.raises(Exception, match=r"Sharing\.fail on workers"):
        failing.fail.call_one().get(timeout=60)
    assert {recorded_faults.take().mesh_name for _ in range(2)} == {"unmade", "failing"}
    assert is_on_main(sharing)
    assert is_on_main(one.spawn("later", Sharing))


def test_an_actor_does_not_wait_for_a_call_of_another(one: ProcMesh, gate: GateKeeper) -> None:
    sharing = one.spawn("sharing", Sharing)
    holding = sharing.hold.call_one(gate.gate)
    gate.wait_entered()
    # It runs beside the call, so it does not have the main thread.
    assert one.map(on_main, range(2)) == [False, False]
    gate.open()
    holding.get(timeout=60)
    assert one.map(on_main, range(2)) == [True, True]


def test_a_call_may_map_over_its_own_rank_and_call_actors_there(one: ProcMesh) -> None:
    sharing, plain = one.spawn("sharing", Sharing), one.spawn("plain", Plain)
    assert sharing.map_there.call_one(one).get(timeout=60) == [False, False]
    assert not sharing.ask.call_one(plain).get(timeout=60)
    assert is_on_main(sharing)


def test_a_map_whose_results_are_not_taken_holds_up_no_call(one: ProcMesh) -> None:
    sharing = one.spawn("sharing", Sharing)
    with_results = one.imap_unordered(on_main, range(1000), chunk_size=1)
    assert next(with_results)
    assert is_on_main(sharing)
    assert all(with_results)
