"""An actor can end itself: stop when its work is done, abort and kill when it has failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ProcMesh, SupervisionError, context, get_or_spawn_controller, this_host
from tests.conftest import Faults
from tests.integration.gates import GateKeeper
from tests.integration.sample_actors import Teller
from tests.integration.self_ending_actors import (
    AsyncSelfEnding,
    Bare,
    Owner,
    QuitsInCleanup,
    SelfEnding,
)

Spawn = Callable[..., ProcMesh]


@pytest.fixture
def said(tmp_path: Path) -> Path:
    """Where actors write what they do."""
    path = tmp_path / "said"
    path.touch()
    return path


@pytest.fixture
def one(spawn_procs: Spawn) -> ProcMesh:
    """One proc, of the test alone."""
    return spawn_procs(name="workers")


failing = pytest.mark.parametrize("how", ["abort", "kill"])


def check_given_up(error: BaseException | None, how: str, reason: str, endpoint: str) -> None:
    """That it tells of an actor that has ended itself, where and why."""
    assert isinstance(error, SupervisionError), error
    (failure,) = error.failures
    assert (failure.kind, failure.exception_type) == ("actor died", how)
    assert (failure.message, failure.endpoint) == (reason, endpoint)
    places = [frame for frame in failure.frames if frame.user]
    assert places
    assert places[-1].name == "end_self"
    assert places[-1].line == "getattr(context().actor_instance, how)(reason)"
    assert f"died of {how}: {reason}" in str(error)
    assert "end_self" in failure.traceback


# --- abort and kill -------------------------------------------------------------------------------


@failing
def test_the_call_in_which_it_gives_up_and_all_later_ones_fail(
    one: ProcMesh, said: Path, faults: Faults, how: str
) -> None:
    ending = one.spawn("ending", SelfEnding, str(said))
    teller = one.spawn("teller", Teller)
    pid = teller.pid.call_one().get()
    error = ending.quit.call_one(how, "no hope left").exception(timeout=60)
    check_given_up(error, how, "no hope left", "quit")
    check_given_up(ending.ping.call_one().exception(timeout=60), how, "no hope left", "quit")
    fault = faults.take()
    assert f"SelfEnding.quit on workers died of {how}: no hope left" in str(fault)
    with pytest.raises(SupervisionError, match="no hope left"):
        ending.ping.broadcast()
    # Only the actor has ended; and not before it went on to the end of its method.
    assert teller.pid.call_one().get() == pid
    assert one.spawn("next", Teller).pid.call_one().get() == pid
    ending.stop().get(timeout=60)
    lines = said.read_text().splitlines()
    assert lines[0] == "went on"
    assert lines[1].startswith(
        "cleaned up after SupervisionError: SelfEnding.quit on workers died of"
    )


@failing
def test_its_callers_do_not_wait_for_the_rest_of_a_sync_endpoint(
    one: ProcMesh, said: Path, faults: Faults, gate: GateKeeper, how: str
) -> None:
    ending = one.spawn("ending", SelfEnding, str(said))
    answers = [ending.quit_at.call_one(gate.gate, how, "now")]
    answers += [ending.ping.call_one() for _ in range(20)]
    gate.wait_entered()
    for answer in answers:
        check_given_up(answer.exception(timeout=60), how, "now", "quit_at")
    check_given_up(ending.ping.call_one().exception(timeout=60), how, "now", "quit_at")
    assert said.read_text() == ""  # it cleans up on its own thread, which is held
    gate.open()
    faults.take()  # when it has cleaned up
    assert "cleaned up after SupervisionError" in said.read_text()


@failing
def test_what_was_queued_before_it_gave_up_is_not_run(
    one: ProcMesh, said: Path, faults: Faults, gate: GateKeeper, how: str
) -> None:
    ending = one.spawn("ending", SelfEnding, str(said))
    first = ending.quit_behind.call_one(gate.gate, how, "later")
    queued = [ending.quit.call_one("abort", "never") for _ in range(20)]
    gate.wait_entered()
    gate.open()
    for answer in [first, *queued]:
        check_given_up(answer.exception(timeout=60), how, "later", "quit_behind")
    faults.take()
    ending.stop().get(timeout=60)
    assert "went on" not in said.read_text()


@failing
def test_an_async_endpoint_that_gives_up_is_cancelled_where_it_waits_next(
    one: ProcMesh, said: Path, faults: Faults, how: str
) -> None:
    ending = one.spawn("ending", AsyncSelfEnding, str(said))
    answers = [ending.quit.call_one(how, "enough")]
    answers += [ending.ping.call_one() for _ in range(20)]
    for answer in answers:
        check_given_up(answer.exception(timeout=60), how, "enough", "quit")
    faults.take()
    assert said.read_text().splitlines() == [
        "went on to where it waits", "cancelled", "cleaned up after SupervisionError",
    ]  # fmt: skip


@failing
def test_an_async_endpoint_that_does_not_wait_any_more_ends_and_its_actor_cleans_up(
    one: ProcMesh, said: Path, faults: Faults, how: str
) -> None:
    ending = one.spawn("ending", AsyncSelfEnding, str(said))
    answer = ending.quit_and_return.call_one(how, "enough")
    check_given_up(answer.exception(timeout=60), how, "enough", "quit_and_return")
    faults.take()
    assert said.read_text() == "cleaned up after SupervisionError\n"


@failing
def test_calls_that_overlap_with_the_one_that_gives_up_fail_with_it(
    one: ProcMesh, said: Path, faults: Faults, gate: GateKeeper, how: str
) -> None:
    ending = one.spawn("ending", AsyncSelfEnding, str(said))
    beside = [ending.wait_beside.call_one(gate.gate) for _ in range(3)]
    gate.wait_entered(3)
    gate.open(3)
    last = ending.quit_beside.call_one(how, "all together")
    for answer in [*beside, last]:
        error = answer.exception(timeout=60)
        assert isinstance(error, SupervisionError)
        assert f"AsyncSelfEnding on workers died of {how}: all together" in str(error)
    faults.take()
    lines = said.read_text().splitlines()
    assert lines[-1] == "cleaned up after SupervisionError"  # after all of them were cancelled
    assert set(lines[:-1]) == {"cancelled"}


@failing
@pytest.mark.parametrize("cls", [SelfEnding, AsyncSelfEnding])
def test_an_actor_is_given_up_from_a_thread_of_its_own(
    one: ProcMesh, said: Path, faults: Faults, how: str, cls: Any
) -> None:
    ending = one.spawn("ending", cls, str(said))
    error = ending.quit_on_a_thread.call_one(how, "the watchdog barks").exception(timeout=60)
    assert isinstance(error, SupervisionError)
    assert f"died of {how}: the watchdog barks" in str(error)
    faults.take()
    assert "cleaned up after SupervisionError" in said.read_text()


def test_a_watchdog_thread_gets_the_word_out_though_an_endpoint_hangs(
    one: ProcMesh, said: Path, faults: Faults, gate: GateKeeper
) -> None:
    ending = one.spawn("ending", SelfEnding, str(said))
    ending.lower_the_time_for_clean_up.call_one().get()
    answer = ending.quit_on_a_thread.call_one("abort", "it hangs", gate.gate)
    assert "died of abort: it hangs" in str(answer.exception(timeout=60))
    # Its owner is told when the time for clean-up has passed, since there was none by then.
    assert "it hangs" in str(faults.take())
    assert said.read_text() == ""
    gate.open()
    one.stop().get(timeout=60)
    assert "cleaned up after" in said.read_text()


def test_an_idle_actor_is_given_up_from_a_thread(
    one: ProcMesh, faults: Faults, gate: GateKeeper
) -> None:
    bare = one.spawn("bare", Bare)
    bare.quit_when_idle.call_one(gate.gate).get(timeout=60)
    gate.wait_entered()
    gate.open()
    (failure,) = faults.take().failures
    assert failure.what == "Bare on workers died of kill: nothing to do"


@failing
def test_an_actor_can_give_up_in_its_constructor(
    one: ProcMesh, said: Path, faults: Faults, how: str
) -> None:
    ending = one.spawn("ending", SelfEnding, str(said), how, "a bad start")
    check_given_up(ending.ping.call_one().exception(timeout=60), how, "a bad start", "__init__")
    faults.take()
    lines = said.read_text().splitlines()
    assert lines[0] == "the constructor went on"
    assert lines[1].startswith("cleaned up after SupervisionError")


def test_the_first_reason_stands(one: ProcMesh, said: Path, faults: Faults) -> None:
    for name in ("quit_twice", "quit_and_raise"):
        ending = one.spawn("ending", SelfEnding, str(said))
        answer = getattr(ending, name).call_one()
        check_given_up(answer.exception(timeout=60), "abort", "the first", name)
        assert "the first" in str(faults.take())
        ending.stop().get(timeout=60)
    assert said.read_text().count("cleaned up") == 2


def test_without_a_reason_the_failure_says_so(one: ProcMesh, said: Path, faults: Faults) -> None:
    ending = one.spawn("ending", SelfEnding, str(said))
    answer = ending.quit.call_one("abort")
    check_given_up(answer.exception(timeout=60), "abort", "no reason was given", "quit")
    faults.take()


def test_a_call_that_answers_through_a_port_fails_with_its_actor(
    one: ProcMesh, said: Path, faults: Faults
) -> None:
    ending = one.spawn("ending", SelfEnding, str(said))
    error = ending.quit_before_it_answers.call_one().exception(timeout=60)
    check_given_up(error, "abort", "no answer today", "quit_before_it_answers")
    faults.take()


def test_an_actor_that_gives_up_while_its_owner_stops_it_is_no_failure(
    one: ProcMesh, faults: Faults
) -> None:
    ending = one.spawn("ending", QuitsInCleanup)
    ending.ping.call_one().get()
    ending.stop().get(timeout=60)
    assert one.spawn("ending", QuitsInCleanup).ping.call_one().exception(timeout=60) is None
    assert faults.untaken() == []


@failing
def test_ranks_beside_the_one_that_gave_up_work_on(
    spawn_procs: Spawn, faults: Faults, how: str
) -> None:
    bare = spawn_procs({"gpus": 4}, name="workers").spawn("bare", Bare)
    error = bare.slice(gpus=1).quit.call_one(how, "alone").exception(timeout=60)
    assert f"Bare.quit on workers[gpus=1] died of {how}: alone" in str(error)
    assert "alone" in str(faults.take())
    assert bare.slice(gpus=slice(2, 4)).ping.call().get().values() == ["pong", "pong"]
    with pytest.raises(SupervisionError, match="alone"):
        bare.ping.call().get(timeout=60)


@failing
def test_one_of_many_ranks_that_were_called_at_once_gives_up(
    spawn_procs: Spawn, few_are_many: None, faults: Faults, how: str
) -> None:
    # So many that the host agent passes the call on and merges the answers.
    bare = spawn_procs({"gpus": 16}, name="workers").spawn("bare", Bare)
    answers = [bare.quit_on.call(7, how, "the seventh"), bare.ping.call()]
    for answer in answers:
        error = answer.exception(timeout=60)
        assert isinstance(error, SupervisionError)
        assert [failure.rank for failure in error.failures] == [7]
        assert f"Bare.quit_on on workers[gpus=7] died of {how}: the seventh" in str(error)
    faults.take()
    others = bare.slice(gpus=slice(8, 16))
    assert others.quit_on.call(-1, how, "nobody").get(timeout=60).values() == list(range(8))


def test_nobody_has_to_wait_for_the_call_in_which_it_gives_up(
    one: ProcMesh, faults: Faults
) -> None:
    bare = one.spawn("bare", Bare)
    bare.quit.broadcast("abort", "unasked")
    assert "Bare.quit on workers died of abort: unasked" in str(faults.take())


@failing
def test_the_owner_of_the_actor_is_told(one: ProcMesh, said: Path, how: str) -> None:
    owner = one.spawn("owner", Owner, str(said))
    what = f"SelfEnding.quit on workers died of {how}: as asked"
    assert owner.let_child.call_one(how, "as asked").get(timeout=60) == what
    told: list[str] = []
    while not told:  # its supervisor runs behind what it had before
        told = owner.was_told.call_one().get(timeout=60)
    assert told == [what]
    assert "cleaned up after SupervisionError" in said.read_text()


def test_a_controller_that_gives_up_fails_for_its_users_alone(said: Path) -> None:
    controller = get_or_spawn_controller("gives-up", SelfEnding, str(said)).get(timeout=60)
    error = controller.quit.call_one("abort", "in the client").exception(timeout=60)
    assert "SelfEnding.quit on client died of abort: in the client" in str(error)
    again = get_or_spawn_controller("gives-up", SelfEnding, str(said)).get(timeout=60)
    assert again.ping.call_one().get(timeout=60) == "pong"


# --- stop -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [SelfEnding, AsyncSelfEnding])
def test_an_actor_that_stops_itself_finishes_what_it_has_and_that_is_no_failure(
    one: ProcMesh, said: Path, cls: Any
) -> None:
    ending = one.spawn("ending", cls, str(said))
    name = "quit" if cls is SelfEnding else "quit_and_return"
    answer = getattr(ending, name).call_one("stop", "all done")
    assert answer.get(timeout=60) == "a value"
    error = None
    while error is None:  # what came before the end is still answered
        error = ending.ping.call_one().exception(timeout=60)
    assert isinstance(error, SupervisionError)
    assert error.failures[0].kind == "stopped"
    assert "was stopped: all done" in str(error)
    assert "cleaned up after NoneType" in said.read_text()


def test_what_an_actor_has_when_it_stops_itself_is_answered(
    one: ProcMesh, said: Path, gate: GateKeeper
) -> None:
    ending = one.spawn("ending", SelfEnding, str(said))
    first = ending.quit_behind.call_one(gate.gate, "stop", "soon")
    queued = [ending.ping.call_one() for _ in range(20)]
    gate.wait_entered()
    one.spawn("teller", Teller).pid.call_one().get()  # and so the queued have arrived
    gate.open()
    assert first.get(timeout=60) == "a value"
    assert [answer.get(timeout=60) for answer in queued] == ["pong"] * 20


# --- where there is no actor ----------------------------------------------------------------------


def test_the_client_is_no_actor_that_could_end_itself() -> None:
    me = context().actor_instance
    for how in ("abort", "kill"):
        with pytest.raises(
            RuntimeError, match=rf"{how}\(\) could end; raise an exception, or .*shu"
        ):
            getattr(me, how)("no")
    with pytest.raises(RuntimeError, match=r"ended by shutdown_context\(\)"):
        me.stop("no")


@pytest.mark.parametrize("how", ["stop", "abort", "kill"])
def test_a_thread_that_is_no_actors_is_told_where_to_take_the_instance(
    one: ProcMesh, said: Path, how: str
) -> None:
    ending = one.spawn("ending", SelfEnding, str(said))
    text = ending.quit_from_a_thread_without_an_actor.call_one(how).get(timeout=60)
    assert f"there is none to {how}; take `me = context().actor_instance`" in text
    assert ending.ping.call_one().get() == "pong"


def abort_the_bootstrap() -> None:
    """A bootstrap function that takes itself for an actor."""
    context().actor_instance.abort("no actor yet")


def test_a_bootstrap_function_is_no_actor_either(faults: Faults) -> None:
    procs = this_host().spawn_procs(bootstrap=abort_the_bootstrap)
    teller = procs.spawn("teller", Teller)
    with pytest.raises(SupervisionError, match=r"fails by raising; abort\('no actor yet'\) is for"):
        teller.pid.call_one().get(timeout=60)
    procs.stop().get(timeout=60)
