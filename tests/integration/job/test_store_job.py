"""StoreJob and `hosts_from_config`: hosts that a program finds without a launcher of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import attach_to_workers
from monarch.job import (
    JobError,
    ProcessJob,
    hosts_from_config,
    new_service_proc_id,
    service_proc_addr,
)
from monarch.job.spmd import StoreJob
from tests.integration.programs import PATIENCE_S
from tests.integration.sample_actors import Counter
from tests.workers import TRUST_ALL, workers

pytestmark = pytest.mark.slow

RANK = """
import os, sys, time
from pathlib import Path
from monarch.actor import Actor, endpoint
from monarch.job.spmd import StoreJob


class Files:
    "A store of files, as simple as one can be."

    def set(self, key, value):
        path = Path(sys.argv[1], key.replace("/", "-"))
        path.with_suffix(".new").write_text(value)
        path.with_suffix(".new").rename(path)

    def get(self, key):
        path = Path(sys.argv[1], key.replace("/", "-"))
        while not path.exists():
            time.sleep(0.01)
        return path.read_bytes()


class Place(Actor):
    @endpoint
    def parent_of_agent(self):
        return os.getppid()


if __name__ == "__main__":
    store = Files()
    try:
        job = StoreJob.from_store(store, transport=sys.argv[2])
        if job is None:
            print("no job")
            store.get("the end")
        else:
            hosts = job.state(cached_path=None).monarch_worker
            procs = hosts.spawn_procs({"gpus": 2})
            found = procs.spawn("place", Place).parent_of_agent.call().get()
            print(dict(procs.sizes), len(set(found.values())))
            job.kill()
    finally:
        if os.environ["RANK"] == "0":
            store.set("the end", "")
"""


def ranks(folder: Path, transport: str, world: int, per_host: int) -> list[tuple[int, str, str]]:
    """Run the program as so many ranks: status, stdout and stderr of each."""
    script = folder / "rank.py"
    script.write_text(RANK)
    path = os.pathsep.join(p for p in sys.path if p)
    started = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), transport], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={
                **os.environ, "PYTHONPATH": path, "RANK": str(rank), "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank % per_host), "LOCAL_WORLD_SIZE": str(per_host),
            },
        )
        for rank in range(world)
    ]  # fmt: skip
    done: list[tuple[int, str, str]] = []
    for one in started:
        out, err = one.communicate(timeout=PATIENCE_S)
        done.append((one.returncode, out, err))
    return done


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_rank_0_has_the_hosts_of_all_ranks(tmp_path: Path, transport: str) -> None:
    done = ranks(tmp_path, transport, world=4, per_host=2)
    assert [status for status, _, _ in done] == [0, 0, 0, 0], done
    assert [out for _, out, _ in done] == ["{'hosts': 2, 'gpus': 2} 2\n", *["no job\n"] * 3]


def test_a_worker_that_cannot_start_is_told_on_rank_0(tmp_path: Path) -> None:
    class Store:
        def set(self, key: str, value: str) -> None:
            assert json.loads(value)["problem"]
            self.value = value

        def get(self, key: str) -> bytes:
            return self.value.encode()

    with pytest.raises(JobError, match=r"workers could not be started: .*nothing"):
        StoreJob.from_store(
            Store(), transport="tcp", ca=str(tmp_path / "nothing"), rank=0, local_rank=0,
            world_size=1, local_world_size=1,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "give rank, or set RANK as torchrun does"),
        ({"rank": 2, "local_rank": 0, "world_size": 2, "local_world_size": 1}, "do not fit"),
        ({"rank": 1, "local_rank": 0, "world_size": 2, "local_world_size": 2}, "do not fit"),
        ({"rank": 0, "local_rank": 0, "world_size": 3, "local_world_size": 2}, "do not fit"),
    ],
)
def test_a_place_that_does_not_fit_is_refused(
    arguments: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    store: dict[str, str] = {}

    class Store:
        def set(self, key: str, value: str) -> None:
            store[key] = value

        def get(self, key: str) -> bytes:
            raise AssertionError("nothing is to be read")

    with pytest.raises(ValueError, match=why):
        StoreJob.from_store(Store(), **arguments)
    with pytest.raises(ValueError, match="transport is 'ipc' or 'tcp', not 'quic'"):
        StoreJob.from_store(
            Store(), transport="quic", rank=0, local_rank=0, world_size=1, local_world_size=1
        )
    assert store == {}


def test_hosts_of_a_name_are_those_of_the_current_job_or_stand_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hosts = hosts_from_config("trainers")
    assert dict(hosts.sizes) == {"hosts": 2}
    counters = hosts.spawn_procs().spawn("counters", Counter)
    assert len(counters.value_now.call().get(timeout=PATIENCE_S).values()) == 2
    assert hosts_from_config("trainers") is hosts
    hosts.shutdown().get(timeout=PATIENCE_S)
    job = ProcessJob({"trainers": 1})
    job.state()
    try:
        assert dict(hosts_from_config("trainers").sizes) == {"hosts": 1}
    finally:
        job.kill()
    with pytest.raises(ValueError, match="cannot name a mesh"):
        hosts_from_config("no name")


def test_a_worker_is_reached_by_an_address_with_an_identity(agent_errors: object) -> None:
    with workers(1) as (worker,):
        address = service_proc_addr(worker.address, new_service_proc_id())
        hosts = attach_to_workers(ca=TRUST_ALL, workers=[address])
        counter = hosts.spawn_procs().spawn("counter", Counter)
        assert list(counter.value_now.call().get(timeout=PATIENCE_S).values()) == [0]
        hosts.shutdown().get(timeout=PATIENCE_S)
