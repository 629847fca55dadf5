"""`monarch ps --at`: what the ranks of another host do, for who may look and not act."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from monarch._src.net.hosts import keys
from monarch._src.net.state.access import Role
from monarch.actor import attach_to_workers
from tests.audits import audited
from tests.integration.commands import monarch
from tests.integration.worker_actors import WorkerActor
from tests.workers import PATIENCE_S, TRUST_ALL, Worker

pytestmark = pytest.mark.slow


def look(*arguments: str) -> tuple[int, str, str]:
    return monarch("ps", "--timeout", str(PATIENCE_S), *arguments)


def test_an_observer_sees_what_a_worker_does_whoever_has_it(
    job: str, guarded: Worker, tmp_path: Path
) -> None:
    status, out, err = look("--at", guarded.address, "--keys", job)
    assert (status, err) == (0, "")
    assert out.startswith(f"worker {guarded.address}  ")
    assert out.endswith("\n  no meshes\n")
    mesh = attach_to_workers(ca=job, workers=[guarded.address])
    worker_actor = mesh.spawn_procs({"gpus": 2}, name="mine").spawn("worker_actor", WorkerActor)
    assert worker_actor.add.call(1).get(timeout=PATIENCE_S).values() == [1, 1]
    status, out, err = look("--at", guarded.address, "--keys", job)
    assert (status, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if "mine[" in line]
    assert len(rows) == 2
    assert all("idle" in row for row in rows)
    status, out, err = look("--at", guarded.address, "--keys", job, "--json")
    (found,) = json.loads(out)["workers"]
    assert found["worker"] == guarded.address
    assert found["problem"] is None
    assert [(m["name"], len(m["procs"])) for m in found["meshes"]] == [("mine", 2)]
    assert worker_actor.add.call(1).get(timeout=PATIENCE_S).values() == [2, 2], (
        "nobody was disturbed"
    )
    mesh.stop().get(timeout=PATIENCE_S)
    roles = {line["role"] for line in audited(tmp_path / "audit") if line["what"] == "linked"}
    assert roles == {"observer", "owner"}


@pytest.mark.parametrize("role", list(Role))
def test_any_key_of_the_job_may_look(job: str, guarded: Worker, role: Role) -> None:
    key = f"{job}/{keys.key_file(role)}"
    status, out, err = look("--at", guarded.address, "--keys", job, "--key", key)
    assert (status, err) == (0, "")
    assert "no meshes" in out


def test_who_has_no_key_of_the_job_sees_nothing(job: str, guarded: Worker, tmp_path: Path) -> None:
    keys.make(tmp_path / "other", "serving")
    for own in (str(tmp_path / "other"), TRUST_ALL):
        status, out, err = monarch("ps", "--timeout", "2", "--at", guarded.address, "--keys", own)
        assert (status, out) == (1, "")
        assert "monarch ps: " in err
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "pass the keys of the job: --keys DIRECTORY"),
        (["--keys", "/nowhere"], "/nowhere"),
    ],
)
def test_what_was_said_wrong_is_told(arguments: list[str], why: str) -> None:
    status, out, err = monarch("ps", "--at", "tcp://127.0.0.1:9", *arguments)
    assert (status, out) == (1, "")
    assert why in err
    assert err.count("\n") == 1


def test_of_several_workers_those_that_answer_are_shown(job: str, guarded: Worker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nobody = f"tcp://127.0.0.1:{port}"
    status, out, err = monarch(
        "ps", "--timeout", "5", "--at", nobody, "--at", guarded.address, "--keys", job
    )
    assert status == 1
    assert f"worker {guarded.address}" in out
    assert nobody in err
    assert "Connection refused" in err
