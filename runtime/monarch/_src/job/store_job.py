"""StoreJob: workers that the ranks of an SPMD program start, found by a store of the ranks.

Runs in: the ranks of a program that torchrun, srun or another launcher has started; rank 0 is the
client. Owns: in the first rank of each host the worker of that host, which ends with that rank.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from monarch._src.config import settings
from monarch._src.errors import JobError, SessionError
from monarch._src.job.health_check import PART_OF_LIVENESS, silent
from monarch._src.job.trait import JobState, JobTrait, check_names
from monarch._src.net.hosts import keys
from monarch._src.net.state.access import TRUST_ALL, Role
from monarch._src.net.state.addresses import parse_address
from monarch._src.session.workers.api import CA, start_local_worker, start_worker

_TRANSPORTS = ("ipc", "tcp")
S = TypeVar("S", bound="StoreJob")


class Store(Protocol):
    """The used methods of a store, such as `torch.distributed.TCPStore`."""

    def set(self, key: str, value: str, /) -> Any:
        """Set the value of a key."""

    def get(self, key: str, /) -> bytes:
        """The value of a key; blocks until it is set."""
        ...


class _Place(msgspec.Struct, frozen=True):
    """The place of this rank among all ranks."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int

    @property
    def hosts(self) -> int:
        return self.world_size // self.local_world_size


class _Worker(msgspec.Struct, frozen=True):
    """A worker as its rank reports it to the others, or the reason why there is none."""

    host: str
    addresses: list[str] = []
    problem: str = ""


class StoreJob(JobTrait):
    """The hosts of an SPMD program, for its rank 0. See `from_store`."""

    _name: str
    _addresses: list[str]
    _ca: str

    def __init__(self, worker_addrs: Sequence[str], name: str, ca: CA = TRUST_ALL) -> None:
        """Args:
        worker_addrs: of the worker of each host, in their order.
        name: of the mesh.
        ca: as `attach_to_workers` takes it.
        """
        super().__init__()
        check_names({name: None}, "a StoreJob")
        self._name = name
        self._addresses = list(worker_addrs)
        self._ca = os.fspath(ca)

    @classmethod
    def from_store(
        cls: type[S],
        store: Store,
        *,
        monarch_port: int = 0,
        name: str = "monarch_worker",
        transport: str = "ipc",
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        local_world_size: int | None = None,
        ca: CA = TRUST_ALL,
    ) -> S | None:
        """Start a worker on each host of an SPMD program, and find them. Every rank calls this.

        A worker ends with the first rank of its host. `state()` of the result attaches to all
        workers, and its mesh has the dim `hosts`.

        Args:
            store: the store of the ranks, such as a `torch.distributed.TCPStore`.
            monarch_port: the port that workers listen at, with `tcp`; 0: any that is free.
            name: the name of the mesh, and of the keys in the store. Each call needs another name.
            transport: `"ipc"` if all ranks are on one host, or `"tcp"`.
            rank, local_rank, world_size, local_world_size: the place of this rank; those of None
                are read from `RANK`, `LOCAL_RANK`, `WORLD_SIZE` and `LOCAL_WORLD_SIZE`.
            ca: the directory of keys that `monarch keys make` has made, at the same path on all
                hosts; without it, `tcp` is for one host only.

        Returns:
            A job that is applied, on rank 0; None on the others.

        Raises:
            ValueError: the place is unknown, or no such transport.
            JobError: on rank 0: a worker could not be started, or others cannot reach it.
            OSError, PermissionError: on another rank: its worker could not be started.
        """
        place = _place(rank, local_rank, world_size, local_world_size)
        check_names({name: None}, "a StoreJob")
        if transport not in _TRANSPORTS:
            raise ValueError(f"transport is 'ipc' or 'tcp', not {transport!r}")
        failure: Exception | None = None
        if place.local_rank == 0:
            try:
                worker = _started(transport, monarch_port, ca)
            except (OSError, ValueError, TypeError, SessionError) as error:
                failure = error
                worker = _Worker(os.uname().nodename, problem=str(error))
            key = _key(name, place.rank // place.local_world_size)
            store.set(key, msgspec.json.encode(worker).decode())
        if place.rank:
            if failure is not None:
                raise failure
            return None
        found = [
            msgspec.json.decode(store.get(_key(name, host)), type=_Worker)
            for host in range(place.hosts)
        ]
        job = cls(_reachable(found, transport), name, ca)
        job.apply()
        return job

    def can_run(self, spec: JobTrait) -> bool:
        return (
            isinstance(spec, StoreJob)
            and (spec._addresses, spec._ca) == (self._addresses, self._ca)
            and not silent(
                [parse_address(one) for one in self._addresses], self._keys(),
                settings().liveness / PART_OF_LIVENESS,
            )
        )  # fmt: skip

    def places(self) -> list[tuple[str, str]]:
        running = self._running_job()
        return [(f"{self._name}[{n}]", one) for n, one in enumerate(running._addresses)]

    def _keys(self) -> keys.Keys | None:
        return None if self._ca == TRUST_ALL else keys.load(self._ca, None, Role.OWNER, only=True)

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise JobError("a StoreJob runs no script as its client: rank 0 is the client")

    def _state(self) -> JobState:
        return self._attached_to(self._ca, {self._name: self._addresses})

    def _kill(self) -> None:
        """Workers that this process has attached to have ended; others end with their ranks."""


def _place(
    rank: int | None, local_rank: int | None, world_size: int | None, local_world_size: int | None
) -> _Place:
    given = {
        "rank": rank, "local_rank": local_rank, "world_size": world_size,
        "local_world_size": local_world_size,
    }  # fmt: skip
    found: dict[str, int] = {}
    for name, value in given.items():
        text = os.environ.get(name.upper(), "") if value is None else str(value)
        if not text.isdecimal():
            raise ValueError(f"give {name}, or set {name.upper()} as torchrun does")
        found[name] = int(text)
    place = _Place(**found)
    if (
        not 0 < place.local_world_size <= place.world_size
        or place.world_size % place.local_world_size
        or place.rank >= place.world_size
        or place.local_rank != place.rank % place.local_world_size
    ):
        raise ValueError(
            f"these do not fit each other: {found}; give the numbers that torchrun would set"
        )
    return place


def _key(name: str, host: int) -> str:
    return f"monarch/{name}/{host}"


def _started(transport: str, port: int, ca: CA) -> _Worker:
    """Start the worker of this host."""
    if transport == "ipc":
        return _Worker(os.uname().nodename, [start_local_worker()])
    everywhere = ca != TRUST_ALL
    report = start_worker(f"tcp://{'*' if everywhere else '127.0.0.1'}:{port}", ca)
    return _Worker(os.uname().nodename, report.others or [report.listening])


def _reachable(found: Sequence[_Worker], transport: str) -> list[str]:
    """The address of each worker.

    Raises:
        JobError: a worker has no address, or one that only its own host can dial, of several hosts.
    """
    problems = [f"{one.host}: {one.problem}" for one in found if one.problem]
    if problems:
        raise JobError(f"workers could not be started: {'; '.join(problems)}")
    hosts = {one.host for one in found}
    if transport == "ipc" and len(hosts) > 1:
        raise JobError(
            f"the ranks are on several hosts ({', '.join(sorted(hosts))}): give transport='tcp', "
            "and ca= with the keys of the job"
        )
    return [one.addresses[0] for one in found]
