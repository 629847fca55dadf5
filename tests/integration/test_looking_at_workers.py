"""`monarch ps --at`: what the ranks of another host do, for who may look and not act."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch._src.core.access import Role
from monarch._src.net import keys
from monarch.actor import attach_to_workers, shutdown_context
from tests.audits import audited
from tests.integration.commands import monarch
from tests.integration.residents import Resident
from tests.workers import PATIENCE_S, TRUST_ALL, Worker, worker


@pytest.fixture
def job(tmp_path: Path) -> str:
    keys.make(tmp_path / "job")
    return str(tmp_path / "job")


@pytest.fixture
def one(job: str, tmp_path: Path) -> Iterator[Worker]:
    audit = str(tmp_path / "audit")
    with worker("--address", "tcp://127.0.0.1:0", "--keys", job, "--audit", audit) as found:
        yield found
        shutdown_context(reason="the worker is about to end")


def look(*arguments: str) -> tuple[int, str, str]:
    return monarch("ps", "--timeout", str(PATIENCE_S), *arguments)


def test_an_observer_sees_what_a_worker_does_whoever_has_it(
    job: str, one: Worker, tmp_path: Path
) -> None:
    status, out, err = look("--at", one.address, "--keys", job)
    assert (status, err) == (0, "")
    assert out.startswith(f"worker {one.address}  ")
    assert out.endswith("\n  no meshes\n")
    mesh = attach_to_workers(ca=job, workers=[one.address])
    resident = mesh.spawn_procs({"gpus": 2}, name="mine").spawn("resident", Resident)
    assert resident.add.call(1).get(timeout=PATIENCE_S).values() == [1, 1]
    status, out, err = look("--at", one.address, "--keys", job)
    assert (status, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if "mine[" in line]
    assert len(rows) == 2
    assert all("idle" in row for row in rows)
    status, out, err = look("--at", one.address, "--keys", job, "--json")
    (found,) = json.loads(out)["workers"]
    assert found["worker"] == one.address
    assert found["problem"] is None
    assert [(m["name"], len(m["procs"])) for m in found["meshes"]] == [("mine", 2)]
    assert resident.add.call(1).get(timeout=PATIENCE_S).values() == [2, 2], "nobody was disturbed"
    mesh.stop().get(timeout=PATIENCE_S)
    roles = {line["role"] for line in audited(tmp_path / "audit") if line["what"] == "linked"}
    assert roles == {"observer", "owner"}


@pytest.mark.parametrize("role", list(Role))
def test_any_key_of_the_job_may_look(job: str, one: Worker, role: Role) -> None:
    key = f"{job}/{keys.key_file(role)}"
    status, out, err = look("--at", one.address, "--keys", job, "--key", key)
    assert (status, err) == (0, "")
    assert "no meshes" in out


def test_who_has_no_key_of_the_job_sees_nothing(job: str, one: Worker, tmp_path: Path) -> None:
    keys.make(tmp_path / "other", "serving")
    for own in (str(tmp_path / "other"), TRUST_ALL):
        status, out, err = monarch("ps", "--timeout", "2", "--at", one.address, "--keys", own)
        assert (status, out) == (1, "")
        assert "monarch ps: " in err
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "give the keys of the job: --keys DIRECTORY"),
        (["--keys", "/nowhere"], "/nowhere"),
    ],
)
def test_what_was_said_wrong_is_told(arguments: list[str], why: str) -> None:
    status, out, err = monarch("ps", "--at", "tcp://127.0.0.1:9", *arguments)
    assert (status, out) == (1, "")
    assert why in err
    assert err.count("\n") == 1


def test_of_several_workers_those_that_answer_are_shown(job: str, one: Worker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nobody = f"tcp://127.0.0.1:{port}"
    status, out, err = monarch(
        "ps", "--timeout", "5", "--at", nobody, "--at", one.address, "--keys", job
    )
    assert status == 1
    assert f"worker {one.address}" in out
    assert nobody in err
    assert "Connection refused" in err
