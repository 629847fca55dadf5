"""What a worker does with what others say to it: strangers, other clients, observers."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from monarch._src.net.hosts import keys
from monarch._src.net.state.access import Role
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import Call, HoldSite, LetSiteGo, Shutdown
from monarch.actor import attach_to_workers
from tests.audits import audited
from tests.integration.worker_actors import WorkerActor
from tests.untrusted_peers import Bomb, linked
from tests.workers import PATIENCE_S, Worker


def refusals(tmp_path: Path) -> list[str]:
    lines = audited(tmp_path / "audit")
    return [line["why"] for line in lines if line["what"] == "refused"]


@pytest.mark.parametrize("role", [Role.OWNER, Role.WORKER])
def test_who_has_a_key_and_not_the_host_can_ask_for_it_and_nothing_else(
    job: str, guarded: Worker, tmp_path: Path, role: Role
) -> None:
    mesh = attach_to_workers(ca=job, workers=[guarded.address])
    worker_actor = mesh.spawn_procs(name="mine").spawn("worker_actor", WorkerActor)
    node = f"{int(worker_actor._actors.procs.uid):x}.0"  # pyright: ignore[reportAttributeAccessIssue]
    bomb = Payload(pickle.dumps(Bomb(tmp_path / "bang")))
    with linked(keys.load(job, None, role), "client-somebody", guarded.address) as caller:
        caller.say(node, Call(1, 1, "pid", 0, [], []), bomb)
        caller.say(AGENT, Shutdown("it is mine"))
        caller.say(AGENT, LetSiteGo(1))
        caller.say(AGENT, HoldSite(1, 7, "intruder", "h9", 30.0))
        caller.all_was_heard()
    assert worker_actor.add.call_one(1).get(timeout=PATIENCE_S) == 1
    mesh.stop().get(timeout=PATIENCE_S)
    assert not (tmp_path / "bang").exists()
    found = refusals(tmp_path)
    assert found[0] == "its sender does not hold this host"
    assert found[1] == "a Shutdown of a node that does not have this host"
    assert found[2] == "a LetSiteGo of a node that does not have this host"
    assert ("has it; it becomes free" in found[3]) == (role is Role.OWNER)
    assert ("owners may hold hosts" in found[3]) == (role is Role.WORKER)


def test_an_observer_has_no_host_and_ends_nothing(
    job: str, guarded: Worker, tmp_path: Path
) -> None:
    with linked(keys.load(job, None, Role.OBSERVER), "observer-1", guarded.address) as caller:
        caller.say(AGENT, HoldSite(1, 7, "observer", "h9", 30.0))
        caller.say(AGENT, Shutdown("it is mine"))
        while not refusals(tmp_path):  # what is dropped is not acknowledged
            caller.links.wait(0.1)
    assert set(refusals(tmp_path)) == {"an observer may not send Relay"}
    mesh = attach_to_workers(ca=job, workers=[guarded.address])
    mesh.stop().get(timeout=PATIENCE_S)
