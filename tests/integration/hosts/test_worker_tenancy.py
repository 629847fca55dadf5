"""Who has a worker: taken, given back, taken over by the next; and how it is served."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest

from monarch._src.net.hosts import keys
from monarch._src.net.state.access import Role
from monarch.actor import (
    HostMesh,
    MeshStoppedError,
    ProcMesh,
    attach_to_workers,
    run_worker_loop_forever,
    shutdown_context,
    start_worker_loop_forever,
    this_host,
)
from monarch.config import configured
from monarch.job import ProcessJob
from monarch.session import SessionError, sessions
from tests.integration.commands import Commands, monarch
from tests.integration.sample_actors import Echo
from tests.integration.worker_actors import CLIENT, WorkerActor
from tests.workers import PATIENCE_S, TRUST_ALL, Worker, worker, workers

pytestmark = pytest.mark.slow


def attached(found: list[Worker], ca: str = TRUST_ALL) -> HostMesh:
    mesh = attach_to_workers(ca=ca, workers=[one.address for one in found])
    mesh.initialized.get(timeout=PATIENCE_S)
    return mesh


# --- taken and given back -------------------------------------------------------------------------


@contextmanager
def alone(*arguments: str) -> Iterator[Worker]:
    with workers(1, *arguments) as (one,):
        yield one
        shutdown_context(reason="the worker is about to end")


def test_a_worker_that_was_given_back_serves_the_next_one_and_shutdown_ends_it() -> None:
    with alone() as one:
        pids: list[int] = []
        for _ in range(2):
            mesh = attached([one])
            ranks = mesh.spawn_procs({"gpus": 2}).spawn("ranks", WorkerActor)
            pids += ranks.pid.call().get(timeout=PATIENCE_S).values()
            assert ranks.slice(gpus=0).add.call_one(1).get(timeout=PATIENCE_S) == 1
            mesh.stop().get(timeout=PATIENCE_S)
            assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
            with pytest.raises(MeshStoppedError, match="released, shut down or lost"):
                mesh.spawn_procs()
        assert len(set(pids)) == 4
        attached([one]).shutdown().get(timeout=PATIENCE_S)
        assert one.ended() == 0


def test_a_block_over_workers_ends_them_also_when_it_raises() -> None:
    async def program(one: Worker, broken: bool) -> None:
        mesh = attach_to_workers(ca=TRUST_ALL, workers=[one.address])
        await mesh.initialized
        async with mesh:
            ranks = mesh.spawn_procs().spawn("ranks", WorkerActor)
            assert await ranks.slice(hosts=0).add.call_one(1) == 1
            if broken:
                raise KeyError("in the block")

    for broken in (False, True):
        with alone() as one:
            with pytest.raises(KeyError, match="in the block") if broken else nullcontext():
                asyncio.run(program(one, broken))
            assert one.ended() == 0


def test_a_block_over_workers_that_were_given_back_in_it_leaves_them() -> None:
    async def program(one: Worker) -> None:
        mesh = attach_to_workers(ca=TRUST_ALL, workers=[one.address])
        await mesh.initialized
        async with mesh:
            await mesh.stop()

    with alone() as one:
        asyncio.run(program(one))
        mesh = attached([one])
        assert mesh.spawn_procs().initialized.get(timeout=PATIENCE_S) is True
        mesh.stop().get(timeout=PATIENCE_S)


def test_hosts_are_equal_wherever_they_are_asked_for() -> None:
    with workers(2) as found:
        mesh = attached(found)
        ranks = mesh.spawn_procs().spawn("ranks", WorkerActor)
        there = ranks.host.call().get(timeout=PATIENCE_S).values()
        assert there == [mesh.slice(hosts=0), mesh.slice(hosts=1)]
        assert there[0] != there[1]
        assert len({*there, mesh, this_host()}) == 4
        shutdown_context(reason="the workers are about to end")


def test_a_client_that_is_killed_is_followed_by_the_next_one(tmp_path: Path) -> None:
    env = {"MONARCH_LIVENESS": "6"}
    with worker("--address", "tcp://127.0.0.1:0", "--keys", TRUST_ALL, env=env) as one:
        path = os.pathsep.join(p for p in sys.path if p)
        with subprocess.Popen(
            [sys.executable, "-c", CLIENT, one.address],
            env={**os.environ, "PYTHONPATH": path, **env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as first:  # fmt: skip
            assert first.stdout is not None
            assert first.stdout.readline() == "has it\n"
            first.kill()
        mesh = attached([one])  # waits until that is noticed
        procs = mesh.spawn_procs()
        assert procs.spawn("a", WorkerActor).add.call_one(2).get(timeout=PATIENCE_S) == 2
        mesh.stop().get(timeout=PATIENCE_S)
        shutdown_context(reason="the worker is about to end")


# --- keys, addresses ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("keys") / "job"
    keys.make(directory, "training")
    return str(directory)


def test_with_keys_it_works_alike_and_none_is_in_an_environment_or_an_argument(
    job: str, tmp_path: Path, own_base_directory: Path
) -> None:
    audit = tmp_path / "audit"
    with alone("--keys", job, "--audit", str(audit)) as one:
        mesh = attached([one], job)
        ranks = mesh.spawn_procs({"gpus": 2}).spawn("ranks", WorkerActor)
        pids = [one.process.pid, *ranks.pid.call().get(timeout=PATIENCE_S).values()]
        secrets = [keys.load(job, None, role).secret.reveal() for role in (Role.WORKER, Role.OWNER)]
        below = [child.pid for child in psutil.Process(one.process.pid).children(recursive=True)]
        assert set(pids) <= {one.process.pid, *below}
        shown = [Path(f"/proc/{p}/{f}") for p in (*pids, *below) for f in ("environ", "cmdline")]
        logs = [audit, *own_base_directory.glob("monarch-*/agent.log")]
        assert len(logs) > 1
        for path in (*shown, *logs):
            assert not any(secret in path.read_bytes() for secret in secrets), path
        mesh.stop().get(timeout=PATIENCE_S)


def test_beyond_loopback_a_worker_without_keys_is_refused_with_the_command() -> None:
    for arguments in ([], ["--keys", TRUST_ALL]):
        status, out, err = monarch("worker", "--address", "tcp://*:0", *arguments)
        assert (status, out) == (1, "")
        assert "monarch keys make" in err
    with pytest.raises(PermissionError, match="monarch keys make"):
        run_worker_loop_forever(address="tcp://*:0", ca=TRUST_ALL)


def test_without_keys_nobody_beyond_loopback_is_dialled() -> None:
    with pytest.raises(PermissionError, match=r"refused to dial tcp://192\.0\.2\.1:26600"):
        attach_to_workers(ca=TRUST_ALL, workers=["tcp://192.0.2.1:26600"])


def test_keys_are_given_as_paths() -> None:
    with pytest.raises(TypeError, match="keys are read from files"):
        start_worker_loop_forever(address="tcp://127.0.0.1:0", ca=b"key")  # type: ignore[arg-type]


def test_a_program_serves_its_host_as_long_as_it_runs(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/w"
    ended = start_worker_loop_forever(address=address, ca=TRUST_ALL)
    mesh = attach_to_workers(ca=TRUST_ALL, workers=[address], name="mine")
    assert mesh.name == "mine"
    assert mesh.spawn_procs().spawn("a", WorkerActor).add.call_one(3).get(timeout=PATIENCE_S) == 3
    mesh.shutdown().get(timeout=PATIENCE_S)
    ended.get(timeout=PATIENCE_S)


@pytest.mark.parametrize("asked", ["tcp://127.0.0.1:0", "tcp://localhost:0@tcp://127.0.0.1:0"])
def test_a_program_that_serves_at_any_port_says_which_it_got(
    asked: str, own_base_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = start_worker_loop_forever(address=asked, ca=TRUST_ALL)
    listening, others = capsys.readouterr().out.splitlines()
    address = listening.removeprefix("listening at ")
    assert int(address.rpartition(":")[2])
    # No other host could dial loopback, so none is told where.
    assert others.startswith("others reach it at no address: ")
    dialled = asked.replace(":0", ":" + address.rpartition(":")[2])
    assert f"worker at {dialled}, " in Commands(own_base_directory).ps()
    assert dialled in [one.serves for one in sessions()]
    attach_to_workers(ca=TRUST_ALL, workers=[dialled]).shutdown().get(timeout=PATIENCE_S)
    ended.get(timeout=PATIENCE_S)


def test_a_program_that_serves_where_it_was_told_prints_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"ipc://{tmp_path}/w"
    ended = start_worker_loop_forever(address=address, ca=TRUST_ALL)
    attach_to_workers(ca=TRUST_ALL, workers=[address]).shutdown().get(timeout=PATIENCE_S)
    ended.get(timeout=PATIENCE_S)
    assert capsys.readouterr().out == ""


def test_monarch_ps_shows_a_worker_and_reap_leaves_it_alone(own_base_directory: Path) -> None:
    with alone() as one:
        commands = Commands(own_base_directory)
        assert f"worker at {one.address}, " in commands.ps()
        (found,) = [s for s in commands.sessions() if s["agent_pid"] == one.process.pid]
        assert (found["state"], found["problem"], found["client"]) == ("live", None, None)
        assert found["serves"] == one.address
        commands.reap()
        assert one.process.poll() is None


# --- handles -------------------------------------------------------------------------------------


def test_stop_of_one_handle_leaves_the_procs_of_another_alone(tmp_path: Path) -> None:
    job = ProcessJob({"hosts": 1})
    try:
        one = job.state(cached_path=None).hosts
        first = one.spawn_procs(name="first").spawn("a", WorkerActor)
        two = job.state(cached_path=None).hosts
        second = two.spawn_procs(name="second").spawn("a", WorkerActor)
        assert one == two
        assert first.add.call_one(1).get(timeout=PATIENCE_S) == 1
        assert second.add.call_one(1).get(timeout=PATIENCE_S) == 1
        one.stop().get(timeout=PATIENCE_S)
        with pytest.raises(MeshStoppedError):
            first.add.call_one(1)
        assert second.add.call_one(1).get(timeout=PATIENCE_S) == 2
        two.stop().get(timeout=PATIENCE_S)
        with pytest.raises(MeshStoppedError, match="released, shut down or lost"):
            two.spawn_procs()
    finally:
        job.kill()


def shut_down(hosts: HostMesh) -> str:
    """In an actor: what becomes of it."""
    try:
        hosts.shutdown()
    except RuntimeError as error:
        return str(error)
    return "it went on"


def test_hosts_cannot_be_shut_down_through_a_reference(four: ProcMesh) -> None:
    with workers(1) as found:
        mesh = attached(found)
        echo = mesh.spawn_procs().spawn("echo", Echo)
        here = four.slice(gpus=0).spawn("here", Echo)
        for actors, hosts in ((echo, mesh), (here, this_host())):
            said = actors.apply.call(shut_down, hosts).get(timeout=PATIENCE_S).values()
            assert [text.split(":")[0] for text in said] == [
                "these hosts cannot be shut down through a reference"
            ]
        assert echo.rank.call().get(timeout=PATIENCE_S).values() == [0]
        with pytest.raises(RuntimeError, match="through a reference"):
            pickle.loads(pickle.dumps(mesh)).shutdown()
        mesh.shutdown().get(timeout=PATIENCE_S)


# --- workers that start late ---------------------------------------------------------------------


def test_attach_returns_at_once_and_a_worker_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/late"
    mesh = attach_to_workers(ca=TRUST_ALL, workers=[address])
    assert repr(mesh) == "<HostMesh {hosts: 1} attaching>"
    assert not mesh.initialized.done
    ended = start_worker_loop_forever(address=address, ca=TRUST_ALL)
    assert mesh.initialized.get(timeout=PATIENCE_S) is True
    assert mesh.spawn_procs().spawn("a", WorkerActor).add.call_one(3).get(timeout=PATIENCE_S) == 3
    mesh.shutdown().get(timeout=PATIENCE_S)
    ended.get(timeout=PATIENCE_S)


def test_a_worker_that_never_starts_is_told_by_initialized_and_by_what_needs_it(
    tmp_path: Path,
) -> None:
    with configured(attach_timeout="200ms"):
        mesh = attach_to_workers(ca=TRUST_ALL, workers=[f"ipc://{tmp_path}/never"])
    for use in (mesh.initialized.get, mesh.spawn_procs, lambda: mesh.hosts):
        with pytest.raises(ConnectionError, match="there is no such socket"):
            use()
    assert "not attached" in repr(mesh)
    mesh.stop().get(timeout=PATIENCE_S)
    mesh.shutdown().get(timeout=PATIENCE_S)


def test_the_end_of_the_session_ends_the_wait_for_workers(tmp_path: Path) -> None:
    mesh = attach_to_workers(ca=TRUST_ALL, workers=[f"ipc://{tmp_path}/never"])
    shutdown_context()
    with pytest.raises((ConnectionError, SessionError, RuntimeError)):
        mesh.hosts  # noqa: B018
