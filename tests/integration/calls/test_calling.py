"""The adverbs: who is called, what comes back, and from where in which slice."""

from __future__ import annotations

import inspect
from collections import Counter as Tally
from typing import Any

import pytest

from monarch.actor import Extent, ProcMesh, ValueMesh, context
from tests.integration.failing_actors import Failing
from tests.integration.gates import GateKeeper
from tests.integration.sample_actors import Counter, Echo, Recorder, Teller


def test_call_answers_with_one_value_a_rank_in_rank_order(grid: ProcMesh) -> None:
    echo = grid.spawn("echo", Echo)
    answer = echo.rank.call().get()
    assert isinstance(answer, ValueMesh)
    assert answer.extent == Extent(["hosts", "gpus"], [2, 3])
    assert answer.values() == [0, 1, 2, 3, 4, 5]
    assert [(dict(point), value) for point, value in answer.items()] == [
        ({"hosts": h, "gpus": g}, 3 * h + g) for h in range(2) for g in range(3)
    ]
    assert answer.item(hosts=1, gpus=2) == 5
    assert answer.slice(hosts=1).values() == [3, 4, 5]
    assert answer.get(4) == 4


def test_the_rank_that_answers_first_does_not_come_first(four: ProcMesh, gate: GateKeeper) -> None:
    echo = four.spawn("echo", Echo)
    late = echo.slice(gpus=0).pass_gate.call_one(gate.gate, "late")
    gate.wait_entered()
    answer = echo.rank.call()
    assert echo.slice(gpus=slice(1, 4)).rank.call().get().values() == [0, 1, 2]
    gate.open()
    assert answer.get().values() == [0, 1, 2, 3]
    assert late.get() == "late"


def test_call_one_answers_with_the_value_itself(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    assert echo.slice(gpus=2).same.call_one({"a": [1, 2]}).get() == {"a": [1, 2]}
    assert echo.slice(gpus=slice(3, 4)).same.call_one(None).get() is None


def test_call_one_on_many_ranks_is_refused_before_its_arguments_are_looked_at(
    four: ProcMesh,
) -> None:
    echo = four.spawn("echo", Echo)
    with pytest.raises(ValueError, match=r"call_one needs a mesh of one rank.*\{gpus: 4\}.*Slice"):
        echo.same.call_one("too", "many", "arguments")  # type: ignore[call-arg]


def test_choose_asks_one_rank_and_in_time_every_rank(four: ProcMesh) -> None:
    teller = four.spawn("teller", Teller)
    drawn = [teller.places.choose() for _ in range(200)]
    tally = Tally(answer.get()["actor_rank_number"] for answer in drawn)
    # That one of four is drawn less than 15 times in 200 happens once in 10^9 runs.
    assert set(tally) == {0, 1, 2, 3}
    assert min(tally.values()) >= 15


def test_choose_on_a_mesh_of_one_asks_that_one(four: ProcMesh) -> None:
    teller = four.spawn("teller", Teller)
    assert teller.slice(gpus=3).places.choose().get()["actor_rank"] == {"gpus": 3}


def test_stream_gives_answers_as_they_come(four: ProcMesh, gate: GateKeeper) -> None:
    echo = four.spawn("echo", Echo)
    held = echo.slice(gpus=1).pass_gate.call_one(gate.gate)
    gate.wait_entered()
    answers = echo.rank.stream()
    first_three = [next(answers).get() for _ in range(3)]
    assert sorted(first_three) == [0, 2, 3]
    gate.open()
    assert next(answers).get() == 1
    with pytest.raises(StopIteration):
        next(answers)
    held.get()


def test_every_future_of_a_stream_can_be_had_before_any_answer(
    four: ProcMesh, gate: GateKeeper
) -> None:
    echo = four.spawn("echo", Echo)
    futures = list(echo.pass_gate.stream(gate.gate, "done"))
    assert len(futures) == 4
    assert not any(future.done for future in futures)
    gate.open(4)
    assert [future.get() for future in futures] == ["done"] * 4


def test_broadcast_answers_nothing_and_reaches_every_rank(four: ProcMesh) -> None:
    recorder = four.spawn("recorder", Recorder)
    assert recorder.note.broadcast("hello") is None
    assert recorder.take.call().get().values() == [["hello"]] * 4


def test_a_call_takes_effect_though_nobody_looks_at_its_future(four: ProcMesh) -> None:
    recorder = four.spawn("recorder", Recorder)
    recorder.note.call("dropped")
    assert recorder.take.call().get().values() == [["dropped"]] * 4


def test_an_answer_of_none_is_none(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    assert echo.nothing.call().get().values() == [None] * 4


def test_state_stays_with_its_rank(four: ProcMesh) -> None:
    counter = four.spawn("counter", Counter, 10, step=2)
    counter.slice(gpus=2).add.call_one(100).get()
    counter.add.broadcast()
    assert counter.value_now.call().get().values() == [12, 12, 112, 12]


def test_the_rank_in_a_message_is_that_of_the_slice_it_was_sent_to(grid: ProcMesh) -> None:
    teller = grid.spawn("teller", Teller)
    told = teller.slice(hosts=1, gpus=slice(1, 3)).places.call().get()
    assert told.sizes == {"gpus": 2}
    first, second = told.values()
    assert first["actor_rank"] == {"hosts": 1, "gpus": 1}
    assert first["actor_rank_number"] == 4
    assert first["message_rank"] == {"gpus": 0}
    assert first["message_sizes"] == {"gpus": 2}
    assert second["actor_rank_number"] == 5
    assert second["message_rank_number"] == 1
    assert second["current_rank"] == {"gpus": 1}
    assert second["current_size"] == {"gpus": 2}


def test_a_strided_slice_calls_every_second_rank(four: ProcMesh) -> None:
    teller = four.spawn("teller", Teller)
    told = teller.slice(gpus=slice(0, 4, 2)).places.call().get().values()
    assert [t["actor_rank_number"] for t in told] == [0, 2]
    assert [t["message_rank_number"] for t in told] == [0, 1]


def test_dims_can_be_split_renamed_and_flattened_before_a_call(four: ProcMesh) -> None:
    teller = four.spawn("teller", Teller)
    told = teller.split(gpus=("dp", "tp"), tp=2).slice(tp=1).places.call().get()
    assert told.sizes == {"dp": 2}
    assert [t["actor_rank_number"] for t in told.values()] == [1, 3]
    assert teller.rename(gpus="ranks").places.call().get().sizes == {"ranks": 4}
    assert teller.flatten("all").size("all") == 4


def test_actors_on_a_slice_of_procs_count_their_ranks_from_zero(grid: ProcMesh) -> None:
    on_host_1 = grid.slice(hosts=1).spawn("teller", Teller)
    everywhere = grid.spawn("teller", Teller)
    told = on_host_1.places.call().get()
    assert told.sizes == {"gpus": 3}
    assert [t["actor_rank_number"] for t in told.values()] == [0, 1, 2]
    pids = [t["pid"] for t in everywhere.slice(hosts=1).places.call().get().values()]
    assert [t["pid"] for t in told.values()] == pids


def test_slices_that_cannot_be_are_refused_in_the_words_of_the_mesh(four: ProcMesh) -> None:
    echo = four.spawn("echo", Echo)
    with pytest.raises(TypeError, match="cpus"):
        echo.slice(cpus=0)
    with pytest.raises(IndexError, match="gpus=4"):
        echo.slice(gpus=4)
    with pytest.raises(IndexError, match="gpus=-1"):
        echo.slice(gpus=-1)
    with pytest.raises(ValueError, match="gpus"):
        echo.slice(gpus=slice(2, 2))


def test_an_endpoint_that_is_none_is_an_error_that_lists_those_there_are(four: ProcMesh) -> None:
    counter = four.spawn("counter", Counter)
    with pytest.raises(AttributeError, match=r"Counter has no endpoint 'ad'.*value_now, add"):
        counter.ad  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_two_meshes_on_the_same_procs_share_processes_and_no_state(four: ProcMesh) -> None:
    one, two = four.spawn("one", Recorder), four.spawn("two", Recorder)
    one.note.broadcast(1)
    two.note.broadcast(2)
    assert one.take.call().get().values() == [[1]] * 4
    assert two.take.call().get().values() == [[2]] * 4


def test_the_client_is_an_actor_too_with_a_rank_of_no_dims() -> None:
    here = context()
    assert dict(here.message_rank) == {}
    assert here.message_rank.rank == 0
    assert here.actor_instance.name == "client"


def test_an_actor_knows_its_name_and_its_id_is_its_own(four: ProcMesh) -> None:
    teller = four.spawn("anton", Teller)
    assert teller.slice(gpus=0).places.call_one().get()["name"] == "anton"
    identities = teller.identity.call().get().values()
    assert len({actor for actor, _ in identities}) == 4
    assert len({proc for _, proc in identities}) == 4


def test_mapping_over_an_error_leaves_the_mesh_as_usable_as_before(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing)
    answers = [failing.raise_on.call([number % 4]) for number in range(40)]
    assert all(answer.exception() is not None for answer in answers)
    assert failing.fine.call().get().values() == ["fine"] * 4


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cal", r"the endpoint Echo\.same has no 'cal'; did you mean \.same\.call\(\.\.\.\)\?"),
        ("callone", r"did you mean \.same\.call_one\("),
        ("remote", r"has no 'remote': it is called by \.same\.call\(\.\.\.\) \(every rank\), "),
    ],
)
def test_an_adverb_that_is_none_is_told_with_the_near_one_or_with_all(
    four: ProcMesh, name: str, says: str
) -> None:
    with pytest.raises(AttributeError, match=says):
        getattr(four.spawn("echo", Echo).same, name)


def test_who_goes_through_a_future_or_gets_a_stream_is_told_what_to_write(four: ProcMesh) -> None:
    rank: Any = four.spawn("echo", Echo).rank
    with pytest.raises(TypeError, match=r"get\(\) it, or await it; `for point, value in mesh"):
        list(rank.call())
    streamed = rank.stream()
    with pytest.raises(AttributeError, match=r"no 'get'.* Write `for answer in mesh\.end"):
        streamed.get()
    assert sorted(answer.get() for answer in streamed) == [0, 1, 2, 3]


def test_an_endpoint_of_a_mesh_looks_like_its_method_to_who_asks(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing)
    for name in ("raise_value_error", "raise_unpicklable"):
        endpoint, method = getattr(failing, name), getattr(Failing, name).function
        expected = str(inspect.signature(method)).replace("(self, ", "(").replace("(self)", "()")
        assert str(inspect.signature(endpoint)) == expected
        assert endpoint.__doc__ == method.__doc__
    kind = type(failing.raise_value_error)
    assert (kind.__doc__ or "").startswith("One endpoint of an actor mesh.")
    assert list(inspect.signature(kind).parameters) == ["runtime", "target", "method"]
