"""Answers wait until output is shown: together, in their order, and never for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator

import pytest

from monarch._src.actor.deliver import output_barrier
from monarch._src.actor.deliver.output_barrier import FRONT_ENDS, OutputBarrier
from tests.runtime_logs import RuntimeErrors


class Agents:
    """What is asked of host agents, which answer when they are told to."""

    def __init__(self) -> None:
        self.asked: list[Collection[int] | None] = []
        self.answers: list[Callable[[], None]] = []

    def flush(self, meshes: Collection[int] | None, done: Callable[[], None]) -> None:
        self.asked.append(meshes)
        self.answers.append(done)

    def answer(self) -> None:
        self.answers.pop(0)()


@pytest.fixture
def agents() -> Agents:
    return Agents()


@pytest.fixture
def barrier(agents: Agents) -> Iterator[OutputBarrier]:
    made = OutputBarrier(agents.flush)
    yield made
    made.close()


@pytest.fixture
def given(barrier: OutputBarrier) -> list[str]:
    """What was given out."""
    return []


def wait(barrier: OutputBarrier, given: list[str], name: str, mesh: int = 1) -> None:
    barrier.note(mesh, everywhere=False)
    barrier.after(lambda: given.append(name))


def test_an_answer_is_given_out_when_the_agents_have_answered(
    barrier: OutputBarrier, agents: Agents, given: list[str]
) -> None:
    wait(barrier, given, "a")
    assert (given, agents.asked, barrier.is_shut) == ([], [{1}], True)
    agents.answer()
    assert (given, barrier.is_shut) == (["a"], False)


def test_those_that_come_meanwhile_wait_for_the_next_request_together(
    barrier: OutputBarrier, agents: Agents, given: list[str]
) -> None:
    wait(barrier, given, "a")
    wait(barrier, given, "b", mesh=2)
    wait(barrier, given, "c", mesh=3)
    assert len(agents.asked) == 1
    agents.answer()
    assert (given, agents.asked[1]) == (["a"], {2, 3})
    agents.answer()
    assert (given, len(agents.asked), barrier.is_shut) == (["a", "b", "c"], 2, False)


def test_output_of_who_knows_which_ranks_is_asked_for_everywhere(
    barrier: OutputBarrier, agents: Agents
) -> None:
    barrier.note(1, everywhere=True)
    barrier.after(lambda: None)
    assert agents.asked == [None]
    agents.answer()


def test_front_ends_show_what_they_have_before_an_answer_is_given_out(
    barrier: OutputBarrier, agents: Agents, given: list[str]
) -> None:
    shown: list[Callable[[], None]] = []
    FRONT_ENDS.append(shown.append)
    FRONT_ENDS.append(shown.append)
    try:
        wait(barrier, given, "a")
        assert shown == []
        agents.answer()
        first, second = shown
        first()
        assert given == []
        second()
        assert given == ["a"]
    finally:
        FRONT_ENDS.clear()


def test_an_agent_that_does_not_answer_holds_no_answer_back_for_ever(
    barrier: OutputBarrier, agents: Agents, given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_barrier, "BOUND_S", 0.01)
    out = threading.Event()
    wait(barrier, given, "a")
    barrier.after(out.set)
    assert out.wait(60)
    assert given == ["a"]
    # Until it has answered it is not waited for.
    wait(barrier, given, "b")
    assert (given, len(agents.asked), barrier.is_shut) == (["a", "b"], 1, False)
    agents.answer()
    monkeypatch.undo()
    wait(barrier, given, "c")
    assert (given, len(agents.asked)) == (["a", "b"], 2)
    agents.answer()
    assert given == ["a", "b", "c"]


def test_what_waits_at_the_end_is_given_out(
    barrier: OutputBarrier, agents: Agents, given: list[str]
) -> None:
    wait(barrier, given, "a")
    wait(barrier, given, "b")
    barrier.close()
    barrier.close()
    assert given == ["a", "b"]
    agents.answer()  # it comes too late, and changes nothing
    wait(barrier, given, "c")
    assert given == ["a", "b", "c"]


def test_an_answer_that_is_not_taken_holds_up_no_other(
    barrier: OutputBarrier, agents: Agents, given: list[str], runtime_errors: RuntimeErrors
) -> None:
    barrier.note(1, everywhere=False)
    barrier.after(lambda: 1 / 0)  # pyright: ignore[reportArgumentType]
    wait(barrier, given, "b")
    agents.answer()
    agents.answer()
    assert given == ["b"]
    (error,) = runtime_errors.take()
    assert "releasing an answer failed" in error
