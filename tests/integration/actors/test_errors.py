"""What a caller is told: who, where and what; whose fault decides who lives on."""

from __future__ import annotations

import inspect
import pickle
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from monarch.actor import ActorError, ProcMesh, SupervisionError
from tests.conftest import Faults
from tests.integration import failing_actors
from tests.integration.failing_actors import Asking, BadConstructor, Failing, Picky
from tests.integration.gates import GateKeeper
from tests.integration.programs import run
from tests.integration.sample_actors import Echo

Spawn = Callable[..., ProcMesh]


def line_of(function: Any, text: str) -> int:
    """The line of the actors' file where that text stands in that function."""
    lines, start = inspect.getsourcelines(function)
    return start + next(n for n, line in enumerate(lines) if text in line)


def test_an_error_says_who_raised_what_where_and_then_shows_the_users_frames(
    four: ProcMesh,
) -> None:
    failing = four.spawn("failing", Failing)
    with pytest.raises(ActorError) as caught:
        failing.slice(gpus=2).raise_value_error.call_one("too large").get()
    line = line_of(Failing.raise_value_error.function, "raise ValueError")
    assert str(caught.value) == (
        "Failing.raise_value_error on workers[gpus=2] raised ValueError: too large\n"
        f'  File "{failing_actors.__file__}", line {line}, in raise_value_error\n'
        "    raise ValueError(text)"
    )
    assert caught.value.message == str(caught.value)


def test_an_error_carries_the_facts_as_data(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing)
    echo = four.spawn("echo", Echo)
    error = failing.slice(gpus=2).raise_value_error.call_one().exception()
    assert isinstance(error, ActorError)
    (failure,) = error.failures
    assert failure.mesh_name == "workers"
    assert failure.rank == 2
    assert failure.point == {"gpus": 2}
    assert failure.actor_class == "Failing"
    assert failure.endpoint == "raise_value_error"
    assert failure.kind == "endpoint"
    assert failure.exception_type == "ValueError"
    assert failure.message == "a bad value"
    assert failure.pid == echo.slice(gpus=2).apply.call_one(__import__("os").getpid).get()
    assert failure.death is None
    assert [frame.name for frame in failure.frames if frame.user] == ["raise_value_error"]
    assert not failure.frames[0].user


def test_the_remote_exception_itself_comes_along(four: ProcMesh) -> None:
    error = four.spawn("failing", Failing).raise_value_error.call("x").exception()
    assert isinstance(error, ActorError)
    assert type(error.exception) is ValueError
    assert error.exception.args == ("x",)
    assert error.__cause__ is error.exception


def test_ranks_that_fail_alike_are_told_as_one(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing)
    with pytest.raises(ActorError) as caught:
        failing.raise_value_error.call().get()
    failing.fine.call().get()  # by now every rank has told its own
    failures = caught.value.failures
    assert sorted(failure.rank for failure in failures) == [0, 1, 2, 3]
    text = str(caught.value)
    assert text.count("raised ValueError: a bad value") == 1
    assert text.startswith("Failing.raise_value_error on workers[gpus=0] raised")
    assert "and on 3 more ranks: gpus=1..3" in text


def test_the_lowest_rank_is_named_and_its_exception_raised_whichever_failed_first(
    four: ProcMesh, gate: GateKeeper
) -> None:
    failing = four.spawn("failing", Failing)
    answer = failing.raise_in_turn.call(3, gate.gate)
    gate.wait_entered(3)
    failing.slice(gpus=3).fine.call_one().get()  # by now its failure has arrived
    gate.open(3)
    failing.fine.call().get()
    with pytest.raises(ActorError) as caught:
        answer.get()
    assert caught.value.failures[0].rank == 3
    text = str(caught.value)
    assert text.startswith(
        "Failing.raise_in_turn on workers[gpus=0] raised ValueError: bad shard 0"
    )
    assert text.splitlines()[-4:] == [
        "and on 3 more ranks, in other words:",
        "  gpus=1: bad shard 1",
        "  gpus=2: bad shard 2",
        "  gpus=3: bad shard 3",
    ]
    assert repr(caught.value.exception) == "ValueError('bad shard 0')"
    assert caught.value.__cause__ is caught.value.exception


def test_an_error_names_the_lowest_rank_of_those_that_have_failed_so_far(
    four: ProcMesh, gate: GateKeeper
) -> None:
    failing = four.spawn("failing", Failing)
    error = failing.raise_in_turn.call(3, gate.gate).exception()
    assert "workers[gpus=3] raised" in str(error)
    gate.wait_entered(3)
    gate.open(3)
    failing.fine.call().get()
    assert "workers[gpus=0] raised" in str(error).splitlines()[0]


def test_only_the_ranks_that_failed_are_named(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing)
    with pytest.raises(ActorError) as caught:
        failing.raise_on.call([1, 2]).get()
    failing.fine.call().get()
    assert sorted(failure.rank for failure in caught.value.failures) == [1, 2]


def test_the_first_error_is_raised_while_others_still_work(
    four: ProcMesh, gate: GateKeeper
) -> None:
    failing = four.spawn("failing", Failing)
    answer = failing.raise_at_gate.call([3], gate.gate)
    with pytest.raises(ActorError, match=r"gpus=3.* raised ValueError: at once"):
        answer.get()
    gate.wait_entered(3)
    gate.open(3)
    assert failing.fine.call().get().values() == ["fine"] * 4


def test_the_rank_in_an_error_is_that_in_the_mesh_not_that_in_the_slice(grid: ProcMesh) -> None:
    failing = grid.spawn("failing", Failing)
    error = failing.slice(hosts=1, gpus=slice(1, 3)).raise_on.call([1]).exception()
    assert isinstance(error, ActorError)
    assert [(f.rank, f.point) for f in error.failures] == [(5, {"hosts": 1, "gpus": 2})]
    assert "on grid[hosts=1, gpus=2] raised" in str(error)


def test_a_stream_raises_in_the_future_of_the_rank_that_failed(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing)
    outcomes = [answer.exception() for answer in failing.raise_on.stream([0, 2])]
    failed = [outcome for outcome in outcomes if isinstance(outcome, ActorError)]
    assert sorted(error.failures[0].rank for error in failed) == [0, 2]
    assert outcomes.count(None) == 2


def test_the_remote_traceback_shows_the_causes(four: ProcMesh) -> None:
    error = four.spawn("failing", Failing).slice(gpus=0).raise_with_cause.call_one().exception()
    assert isinstance(error, ActorError)
    told = error.failures[0].traceback
    assert "KeyError: 'absent'" in told
    assert "The above exception was the direct cause" in told
    assert told.index("KeyError") < told.index("RuntimeError: could not look it up")


def test_an_error_says_what_it_came_of(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing).slice(gpus=0)
    lines = str(failing.raise_with_cause.call_one().exception()).splitlines()
    at = lines.index("because of KeyError: 'absent'")
    assert lines[0].endswith("raised RuntimeError: could not look it up")
    assert lines[at + 2].strip() == '{}["absent"]'
    lines = str(failing.raise_while_handling.call_one().exception()).splitlines()
    assert "while it handled KeyError: 'absent'" in lines
    assert not any("_src" in line for line in lines)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no groups before 3.11")
def test_an_error_says_what_a_group_holds(four: ProcMesh) -> None:
    error = four.spawn("failing", Failing).slice(gpus=0).raise_a_group.call_one().exception()
    assert "in it: ValueError: shard 3\nin it: OSError: shard 5" in str(error)


def test_a_chain_of_errors_is_told_as_far_as_the_next_eight(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing).slice(gpus=0)
    error = failing.raise_in_a_chain.call_one(1000).exception()
    assert isinstance(error, ActorError)
    assert [one.message for one in error.failures[0].behind] == [
        str(number) for number in range(998, 990, -1)
    ]
    error = failing.raise_a_cycle.call_one().exception()
    assert isinstance(error, ActorError)
    assert [one.message for one in error.failures[0].behind] == ["two"]


def test_the_error_of_another_actor_is_told_once(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing).slice(gpus=0)
    asking = four.spawn("asking", Asking, failing).slice(gpus=1)
    text = str(asking.ask.call_one().exception())
    assert text.count("could not look it up") == 2, "its line, and its words"
    assert text.count("because of KeyError: 'absent'") == 1


def test_an_exception_that_cannot_be_pickled_arrives_as_its_text(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing).slice(gpus=0)
    error = failing.raise_unpicklable.call_one().exception()
    assert isinstance(error, ActorError)
    assert error.exception is None
    assert "raised HoldsALock: has a lock" in str(error)


def test_an_exception_that_cannot_be_rebuilt_arrives_as_its_text(four: ProcMesh) -> None:
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(Picky("one", "two")))
    failing = four.spawn("failing", Failing).slice(gpus=0)
    error = failing.raise_picky.call_one().exception()
    assert isinstance(error, ActorError)
    assert error.exception is None
    assert "raised Picky: one and two" in str(error)


def test_an_exception_that_cannot_say_what_it_is_is_told_by_its_type(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing).slice(gpus=0)
    error = failing.raise_mute.call_one().exception()
    assert "raised Mute: <its text could not be made: ZeroDivisionError>" in str(error)
    assert failing.fine.call_one().get() == "fine"


def test_an_endless_recursion_is_told_in_a_few_lines(four: ProcMesh) -> None:
    error = four.spawn("failing", Failing).slice(gpus=0).recurse.call_one().exception()
    assert isinstance(error, ActorError)
    lines = str(error).splitlines()
    assert "raised RecursionError: maximum recursion depth exceeded" in lines[0]
    assert len(lines) < 12
    assert any(re.fullmatch(r"  \[the same \d\d\d more times\]", line) for line in lines)
    error = four.spawn("failing", Failing).slice(gpus=0).recurse_in_turns.call_one().exception()
    lines = str(error).splitlines()
    assert len(lines) < 70
    assert any(re.fullmatch(r"  \.\.\. \d\d\d more frames \.\.\.", line) for line in lines)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before 3.11")
def test_the_notes_of_an_exception_are_told(four: ProcMesh) -> None:
    error = four.spawn("failing", Failing).slice(gpus=0).raise_with_note.call_one().exception()
    assert "raised ValueError: wrong\nin the second batch\n" in str(error)


def test_an_error_can_be_pickled_and_keeps_its_story(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing)
    error = failing.raise_value_error.call().exception()
    failing.fine.call().get()
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(error, ActorError)
    assert type(again) is ActorError
    assert str(again) == str(error)
    assert again.failures == error.failures
    assert again.exception is not None
    assert again.exception.args == ("a bad value",)


def test_an_actor_lives_on_after_an_exception(four: ProcMesh) -> None:
    failing = four.spawn("failing", Failing)
    for _ in range(3):
        assert failing.raise_value_error.call().exception() is not None
    assert failing.fine.call().get().values() == ["fine"] * 4


# --- errors that end an actor ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "said"), [("raise_base", "died of KeyboardInterrupt"), ("leave", "SystemExit: 3")]
)
def test_a_base_exception_ends_the_actor_and_not_its_process(
    spawn_procs: Spawn, faults: Faults, method: str, said: str
) -> None:
    procs = spawn_procs({"gpus": 2}, name="doomed")
    failing, echo = procs.spawn("failing", Failing), procs.spawn("echo", Echo)
    with pytest.raises(SupervisionError, match=said) as caught:
        getattr(failing.slice(gpus=1), method).call_one().get()
    (failure,) = caught.value.failures
    assert (failure.kind, failure.rank, failure.endpoint) == ("actor died", 1, method)
    assert said in str(faults.take())
    with pytest.raises(SupervisionError, match=said):
        failing.fine.call().get()
    assert failing.slice(gpus=0).fine.call_one().get() == "fine"
    assert echo.rank.call().get().values() == [0, 1]
    assert procs.spawn("another", Echo).rank.call().get().values() == [0, 1]


def test_an_exception_that_nobody_waits_for_ends_the_actor_and_is_told_to_its_owner(
    spawn_procs: Spawn, faults: Faults
) -> None:
    procs = spawn_procs({"gpus": 2}, name="doomed")
    failing = procs.spawn("failing", Failing)
    failing.slice(gpus=0).raise_value_error.broadcast("nobody looks")
    fault = faults.take()
    assert fault.mesh_name == "failing"
    assert "on doomed[gpus=0] died of ValueError: nobody looks" in str(fault)
    assert fault.mesh is failing
    with pytest.raises(SupervisionError, match="nobody looks"):
        failing.slice(gpus=0).fine.call_one().get()
    with pytest.raises(SupervisionError, match="nobody looks"):
        failing.fine.broadcast()
    assert failing.slice(gpus=1).fine.call_one().get() == "fine"


def test_messages_queued_behind_the_end_of_an_actor_are_answered_with_its_cause(
    spawn_procs: Spawn, faults: Faults, gate: GateKeeper
) -> None:
    failing = spawn_procs().spawn("failing", Failing)
    held = failing.raise_at_gate.call_one([], gate.gate)
    gate.wait_entered()
    ended = failing.raise_base.call_one()
    queued = [failing.fine.call_one() for _ in range(10)]
    gate.open()
    assert held.get() == 0
    assert isinstance(ended.exception(), SupervisionError)
    for answer in queued:
        assert "died of KeyboardInterrupt" in str(answer.exception(timeout=60))
    faults.take()


# --- constructors ---------------------------------------------------------------------------------


def test_the_error_of_a_constructor_is_raised_at_first_use_and_at_every_later_one(
    four: ProcMesh, faults: Faults
) -> None:
    bad = four.spawn("bad", BadConstructor)
    for _ in range(2):
        with pytest.raises(SupervisionError) as caught:
            bad.rank.call().get()
        assert all(answer.exception() is not None for answer in bad.rank.stream())
        assert sorted(failure.rank for failure in caught.value.failures) == [0, 1, 2, 3]
    (failure,) = [f for f in caught.value.failures if f.rank == 1]
    line = line_of(BadConstructor.__init__, "raise LookupError")
    assert failure.kind == "constructor"
    assert failure.text() == (
        "BadConstructor.__init__ on workers[gpus=1] raised LookupError: no data for rank 1\n"
        f'  File "{failing_actors.__file__}", line {line}, in __init__\n'
        '    raise LookupError(f"no data for rank {rank}")'
    )
    faults.take_ranks({0, 1, 2, 3})


def test_ranks_whose_constructor_was_fine_work_without_the_others(
    four: ProcMesh, faults: Faults
) -> None:
    bad = four.spawn("bad", BadConstructor, [1, 2])
    assert bad.slice(gpus=0).rank.call_one().get() == 0
    assert bad.slice(gpus=3).rank.call_one().get() == 3
    with pytest.raises(SupervisionError, match=r"gpus=1\].*no data for rank 1"):
        bad.slice(gpus=slice(0, 2)).rank.call().get()
    faults.take_ranks({1, 2})


def test_initialized_raises_the_error_of_a_constructor(four: ProcMesh, faults: Faults) -> None:
    with pytest.raises(SupervisionError, match="no data for rank 2"):
        four.spawn("bad", BadConstructor, [2]).initialized.get()
    faults.take_ranks({2})


# --- classes that travel by value -----------------------------------------------------------------


def test_the_source_of_a_script_is_shown_in_the_tracebacks_of_its_actors(tmp_path: Path) -> None:
    status, out, err = run(
        tmp_path,
        """
        import os, sys
        from monarch.actor import Actor, ActorError, endpoint, this_host

        class Own(Exception):
            def __init__(self, text, number):
                super().__init__(text, number)
                self.number = number

        class Worker(Actor):
            @endpoint
            def divide(self, over):
                os.chdir("/")
                return helper(1, over)  # in the endpoint

            @endpoint
            def own(self):
                raise Own("mine", 7)

        def helper(a, b):
            return a // b  # in the helper

        worker = this_host().spawn_procs({"gpus": 2}).spawn("worker", Worker)
        os.rename(__file__, __file__ + ".moved")
        error = worker.divide.call(0).exception()
        print(error)
        own = worker.own.call().exception().exception
        print(type(own) is Own, own.args, own.number)
        """,
    )
    assert err == ""
    assert status == 0
    script = tmp_path / "program.py"
    assert f'File "{script}"' in out
    assert "in divide\n    return helper(1, over)  # in the endpoint\n" in out
    assert "in helper\n    return a // b  # in the helper\n" in out
    # Until Python 3.13 the text is "integer division or modulo by zero".
    assert re.search("raised ZeroDivisionError: (integer division or modulo|division) by zero", out)
    assert "True ('mine', 7) 7" in out


def _fail_of_a_million_frames_with_little_memory_left() -> None:
    trace = None
    for _ in range(1_000_000):
        trace = TracebackType(trace, sys._getframe(), 0, 1)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (16 << 20), resource.RLIM_INFINITY))
    raise RecursionError("too deep").with_traceback(trace)


def test_a_traceback_that_memory_has_no_room_for_twice_is_told_by_its_ends(
    spawn_procs: Callable[..., ProcMesh],
) -> None:
    echo = spawn_procs(name="small").spawn("echo", Echo)
    error = echo.apply.call_one(_fail_of_a_million_frames_with_little_memory_left).exception()
    assert isinstance(error, ActorError)
    (failure,) = error.failures
    assert (failure.exception_type, failure.message) == ("RecursionError", "too deep")
    assert len(failure.frames) == 2000
    assert failure.frames[0].name != failure.frames[-1].name, "both ends of it"
    assert echo.rank.call_one().get() == 0
