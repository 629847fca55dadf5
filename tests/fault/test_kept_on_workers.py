"""A kept session that has worker hosts outlives its client, and the next one takes up all of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from monarch._src.actor.future import Future
from monarch._src.net.hosts import keys
from monarch._src.session.keep import KeptSession
from monarch._src.session.reap import reap
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import AskKnown, Message
from monarch.actor import (
    ActorError,
    SupervisionError,
    attach_to_workers,
    shutdown_context,
    this_host,
)
from monarch.session import SessionError, attach, detach
from tests.conftest import Faults
from tests.fault.keepers import (
    ATTACHES,
    RENEWED,
    TREE,
    Keeper,
    info,
    keeper,
    kept_name,
    standing_still,
)
from tests.integration.commands import Commands
from tests.integration.gates import GateKeeper
from tests.integration.programs import watched
from tests.integration.sample_actors import Teller
from tests.integration.worker_actors import WorkerActor
from tests.workers import PATIENCE_S, TRUST_ALL, Worker, worker, workers

pytestmark = pytest.mark.slow

KEEPS = """
    from monarch.actor import attach_to_workers
    hosts = attach_to_workers(ca="trust_all_connections", workers=sys.argv[2:])
    procs = hosts.spawn_procs({"gpus": 1}, name="workers")
    mine = procs.spawn("mine", Mine)
    mine.add.call(1).get()
    keep(name, [procs])
"""


@pytest.fixture(scope="module")
def two() -> Iterator[list[Worker]]:
    with workers(2) as found:
        yield found


@pytest.fixture
def name(own_base_directory: Path, two: list[Worker]) -> Iterator[str]:
    """A name for a session; what is kept under it is ended after the test."""
    with kept_name(own_base_directory) as found:
        yield found


@pytest.fixture
def first(tmp_path: Path, name: str, two: list[Worker]) -> Iterator[Keeper]:
    """A client that keeps a mesh with a rank on each of two workers."""
    with keeper(tmp_path, name, KEEPS, *addresses(two)) as found:
        yield found


def addresses(found: list[Worker]) -> list[str]:
    return [one.address for one in found]


def killed(client: Keeper) -> None:
    client.program.signal(signal.SIGKILL)
    assert client.program.end()[0] == -9


def is_free(one: Worker) -> bool:
    """Whether a client that knows nothing of any session can have it now."""
    mesh = attach_to_workers(ca=TRUST_ALL, workers=[one.address])
    mesh.initialized.get(timeout=PATIENCE_S)
    mesh.stop().get(timeout=PATIENCE_S)
    shutdown_context()
    return True


def test_a_client_killed_in_the_middle_of_a_call_is_followed_by_one_that_finds_the_state(
    name: str, first: Keeper, gate: GateKeeper
) -> None:
    passes = f"Gate({gate.gate.entered!r}, {gate.gate.leave!r})"
    first.do(f"answer = mine.add_at.call({passes}, 10)")
    gate.wait_entered(2)
    killed(first)
    session = attach(name)
    later = session["mine"].add.call(100)
    gate.open(2)
    assert later.get(timeout=PATIENCE_S).values() == [111] * 2
    # It owns them: spawns on them and on their hosts, and stops them.
    tellers = session["workers"].spawn("tellers", Teller)
    pids = tellers.pid.call().get(timeout=PATIENCE_S).values()
    more = session["workers"].host_mesh.spawn_procs({"gpus": 1}).spawn("more", Teller)
    assert len(more.pid.call().get(timeout=PATIENCE_S).values()) == 2
    session["workers"].stop().get(timeout=PATIENCE_S)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_what_is_not_kept_ends_with_the_client_and_what_is_kept_does_not(
    name: str, first: Keeper
) -> None:
    first.do("tied = hosts.spawn_procs({'gpus': 1})")
    tied = json.loads(first.value("tied.spawn('t', Teller).pid.call().get().values()"))
    kept = json.loads(first.value("procs.spawn('t', Teller).pid.call().get().values()"))
    with watched(tied) as processes:
        assert first.do("detach()") == []
        assert not any(psutil.pid_exists(pid) for pid in tied)  # it has waited for that
        processes.wait_all_ended()
    session = attach(name)
    assert [mesh.name for mesh in session.proc_meshes] == ["workers"]
    assert session["t"].pid.call().get(timeout=PATIENCE_S).values() == kept


def test_each_of_a_chain_of_clients_finds_what_the_one_before_it_did(
    name: str, first: Keeper, tmp_path: Path
) -> None:
    assert first.do("keep(name)") == []
    assert first.do("later = hosts.spawn_procs({'gpus': 1}, name='later')") == []
    assert first.do("later.spawn('echo', Echo).nothing.call().get()") == []
    killed(first)
    with keeper(tmp_path / "second", name, ATTACHES) as second:
        assert second.value("mine.add.call(10).get().values()") == "[11, 11]"
        assert second.value("session['echo'].same.call(5).get().values()") == "[5, 5]"
        killed(second)
    session = attach(name)
    assert session["mine"].add.call(100).get(timeout=PATIENCE_S).values() == [111, 111]
    detach()
    session = attach(name)
    assert session["mine"].add.call(0).get(timeout=PATIENCE_S).values() == [111, 111]


LEAVES, CLIENTS = 4, 12


def test_procs_that_are_called_by_others_know_the_next_client_as_soon_as_it_has_attached(
    name: str, tmp_path: Path, two: list[Worker]
) -> None:
    with keeper(tmp_path, name, KEEPS + TREE, *addresses(two)) as first:
        first.do(f"tree = procs.spawn('tree', Tree, {LEAVES})")
        first.do("tree.ask.call().get()")
        assert first.do("detach()") == []
    for _ in range(CLIENTS):
        session = attach(name)
        found = session["tree"].ask.call().get(timeout=PATIENCE_S).values()
        assert found == [[7] * LEAVES] * 2
        detach()


def test_what_is_started_again_later_knows_who_has_attached_since(
    name: str, tmp_path: Path, two: list[Worker]
) -> None:
    with keeper(tmp_path, name, KEEPS + RENEWED, *addresses(two)) as first:
        first.do(f"nest = procs.spawn('nest', Nest, {LEAVES})")
        first.do("nest.renew.call().get()")
        assert first.do("detach()") == []
    session = attach(name)
    for _ in range(5):
        found = session["nest"].renew.call().get(timeout=PATIENCE_S).values()
        assert found == [[7] * LEAVES] * 2


def test_every_host_is_asked_whether_its_procs_know_the_next_client_and_says_so(
    name: str, first: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, Future[Any]] = {}
    ask = KeptSession.ask

    def noted(
        kept_session: KeptSession, question: Callable[[int], Message], agent: str = AGENT
    ) -> Future[Any]:
        answer = ask(kept_session, question, agent)
        if isinstance(question(0), AskKnown):
            answers[agent] = answer
        return answer

    monkeypatch.setattr(KeptSession, "ask", noted)
    killed(first)
    attach(name)
    assert len(answers) == 3, "that of the client's own host too"
    for answer in answers.values():
        answer.get(timeout=PATIENCE_S)


def test_a_rank_that_stands_still_holds_up_neither_attaching_nor_the_others(
    name: str, tmp_path: Path, two: list[Worker]
) -> None:
    with keeper(tmp_path, name, KEEPS + TREE, *addresses(two)) as first:
        pids = json.loads(first.value("procs.spawn('t', Teller).pid.call().get().values()"))
        first.do("tree = procs.slice(hosts=0).spawn('tree', Tree, 2)")
        assert first.value("tree.ask.call_one().get()") == "[7, 7]"
        assert first.do("detach()") == []
    with standing_still(pids[1]):
        session = attach(name)
        assert session["tree"].ask.call_one().get(timeout=PATIENCE_S) == [7, 7]
    assert session["mine"].add.call(1).get(timeout=PATIENCE_S).values() == [2, 2]


def test_what_failed_meanwhile_is_told_to_the_next_client_once(
    name: str, first: Keeper, gate: GateKeeper, faults: Faults
) -> None:
    pids = json.loads(first.value("procs.spawn('t', Teller).pid.call().get().values()"))
    first.do(f"gate = Gate({gate.gate.entered!r}, {gate.gate.leave!r})")
    first.do("mine.slice(hosts=0).fail_at.broadcast(gate)")
    gate.wait_entered(1)
    killed(first)
    gate.open(1)
    with watched([pids[1]]) as processes:
        os.kill(pids[1], signal.SIGKILL)
        processes.wait_all_ended()
    attach(name)
    said = "\n".join(str(faults.take()) for _ in range(2))
    assert "after the client" in said
    assert "killed by SIGKILL" in said
    detach()
    session = attach(name)
    with pytest.raises(SupervisionError, match="after the client"):
        session["mine"].slice(hosts=0).add.call(1).get(timeout=PATIENCE_S)
    with pytest.raises(SupervisionError, match="killed by SIGKILL"):
        session["mine"].slice(hosts=1).add.call(1).get(timeout=PATIENCE_S)


BOTH = """
    from monarch.actor import attach_to_workers
    from tests.integration.worker_actors import WorkerActor
    hosts = attach_to_workers(ca="trust_all_connections", workers=sys.argv[2:])
    procs = hosts.spawn_procs(name="workers")
    near = this_host().spawn_procs(name="near")
    worker_actors, far = near.spawn("worker_actors", WorkerActor), procs.spawn("far", WorkerActor)
    far.ask.call(worker_actors).get()
    keep(name)
"""


def test_what_is_where_the_client_was_and_what_is_on_workers_is_out_of_reach_for_each_other(
    name: str, tmp_path: Path, two: list[Worker]
) -> None:
    with keeper(tmp_path, name, BOTH, *addresses(two)) as first:
        killed(first)
    session = attach(name)
    pid = session["worker_actors"].pid.call_one().get(timeout=PATIENCE_S)
    assert psutil.pid_exists(pid)
    with pytest.raises(ActorError, match="has ended"):
        session["far"].ask.call(session["worker_actors"]).get(timeout=PATIENCE_S)
    # What is new there is reached as ever.
    new = this_host().spawn_procs().spawn("new", WorkerActor)
    pid = new.pid.call_one().get(timeout=PATIENCE_S)
    assert session["far"].ask.call(new).get(timeout=PATIENCE_S).values() == [pid, pid]


def test_a_client_that_was_away_and_returns_is_not_heard_any_more(
    name: str, first: Keeper, gate: GateKeeper
) -> None:
    """It is stopped while it holds the session, and goes on when another one does."""
    first.program.signal(signal.SIGSTOP)
    with pytest.raises(SessionError, match="holds it; take=True"):
        attach(name)
    session = attach(name, take=True)
    assert session["mine"].add.call(1).get(timeout=PATIENCE_S).values() == [2, 2]
    first.program.signal(signal.SIGCONT)
    (said,) = first.do("mine.add.call(1000).get()")
    assert said.startswith("SupervisionError")
    assert "taken" in said
    assert session["mine"].add.call(1).get(timeout=PATIENCE_S).values() == [3, 3]


def test_a_worker_that_was_kept_is_nobody_elses_and_the_refusal_says_whose(
    name: str, first: Keeper, two: list[Worker]
) -> None:
    killed(first)
    with pytest.raises(
        SessionError, match=f"the session '{name}' keeps meshes on it.*monarch kill {name}"
    ):
        attach_to_workers(ca=TRUST_ALL, workers=addresses(two)).initialized.get()


def test_monarch_kill_ends_it_on_all_hosts_and_the_workers_are_free(
    name: str, first: Keeper, two: list[Worker], own_base_directory: Path
) -> None:
    pids = json.loads(first.value("procs.spawn('t', Teller).pid.call().get().values()"))
    killed(first)
    commands = Commands(own_base_directory)
    assert ": workers" in commands.ps().partition("also on")[2]
    commands.kill(name)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert all(is_free(one) for one in two)


def test_what_an_agent_leaves_that_is_killed_is_ended_by_reap(
    name: str, first: Keeper, two: list[Worker], own_base_directory: Path
) -> None:
    pids = json.loads(first.value("procs.spawn('t', Teller).pid.call().get().values()"))
    killed(first)
    agent = info(own_base_directory, name).agent
    assert agent is not None
    with watched([agent.pid]) as processes:
        os.kill(agent.pid, signal.SIGKILL)
        processes.wait_all_ended()
    shutdown_context()  # what sweeps directories leaves this one alone
    assert all(psutil.pid_exists(pid) for pid in pids)
    assert not reap([str(own_base_directory)]).complaints
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert all(is_free(one) for one in two)


def test_a_worker_that_ended_meanwhile_is_told_as_lost_and_the_others_work_on(
    name: str, tmp_path: Path, two: list[Worker], faults: Faults
) -> None:
    with workers(1) as (third,):
        with keeper(tmp_path, name, KEEPS, two[0].address, third.address) as first:
            killed(first)
        third.process.terminate()
        third.ended()
    session = attach(name)
    assert "nothing listens there" in str(faults.take())
    assert session["mine"].slice(hosts=0).add.call_one(1).get(timeout=PATIENCE_S) == 2
    with pytest.raises(SupervisionError, match="nothing listens there"):
        session["mine"].slice(hosts=1).add.call_one(1).get(timeout=PATIENCE_S)


def test_what_was_kept_on_hosts_of_a_job_that_was_killed_is_told_and_ended_without_its_keys(
    name: str, tmp_path: Path, own_base_directory: Path, agent_errors: Callable[[], list[str]]
) -> None:
    made = tmp_path / "keys"
    keys.make(made)
    secured = KEEPS.replace('"trust_all_connections"', repr(str(made)))
    with worker("--address", "tcp://127.0.0.1:0", "--keys", str(made)) as one:
        with keeper(tmp_path, name, secured, one.address) as client:
            killed(client)
        shutil.rmtree(made)
        with pytest.raises(
            FileNotFoundError, match=r"job was killed.* `monarch kill` ends the rest"
        ):
            attach(name)
        commands = Commands(own_base_directory)
        status, _, err = commands.kill(name)  # the worker is there, and has not heard of it
        assert status == 1
        assert f"the keys of its job are gone from {made}; put them back, or if that job" in err
        assert [line for line in commands.ps().splitlines() if "`monarch reap` ends those" in line]
    assert commands.reap()[0] == 0
    assert "is gone" not in commands.ps()
    assert len(agent_errors()) == 1


def test_what_nobody_comes_for_in_time_is_ended_and_the_worker_is_free(
    name: str, tmp_path: Path, two: list[Worker], faults: Faults
) -> None:
    limited = KEEPS.replace("hosts = ", "configure(detached_limit=0.5)\n    hosts = ")
    with keeper(tmp_path, name, limited, *addresses(two)) as client:
        pids = json.loads(client.value("procs.spawn('t', Teller).pid.call().get().values()"))
        with watched(pids) as processes:
            killed(client)
            processes.wait_all_ended()
    assert all(is_free(one) for one in two)
    attach(name)
    said = "\n".join(str(faults.take()) for _ in two)
    assert said.count("no mesh of that session is left there") == 2


def test_shutdown_ends_what_was_kept_on_all_hosts(
    name: str, first: Keeper, two: list[Worker]
) -> None:
    pids = json.loads(first.value("procs.spawn('t', Teller).pid.call().get().values()"))
    assert first.do("monarch.actor.shutdown_context()") == []
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert all(is_free(one) for one in two)
