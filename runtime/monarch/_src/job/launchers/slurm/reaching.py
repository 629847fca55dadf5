"""Finds the address by which this client reaches each worker of a Slurm job.

Runs in: clients, on a thread that may block. Owns nothing.
Invariants: an address counts only if the worker that answers there has the site that this worker
has reported. The name of a node, and an address that several hosts have, may lead to another host.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from monarch._src.errors import HostUnreachableError
from monarch._src.job.health_check import answering
from monarch._src.job.launchers.slurm.state.reports import Worker
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.interfaces import first_that_answers, resolve
from monarch._src.net.state.addresses import Address, Attempt, attempts_text, parse_address
from monarch._src.wire.ids import host_of_site


class Search:
    """The addresses of a worker that have not been tried, and those that lead elsewhere."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.found = False
        self.at: Address | None = None  # a program accepts connections there
        self.left = _numeric(Address("tcp", worker.node, worker.port))
        told = [parse_address(f"tcp://{text}") for text in worker.addresses]
        self.left += [one for one in told if one not in self.left]
        self._wrong: list[Attempt] = []

    def dial(self, timeout_s: float) -> Address:
        """The next address that accepts a connection.

        Raises:
            HostUnreachableError: none does.
        """
        name = f"the worker on {self.worker.node}"
        if not self.left:
            raise HostUnreachableError(attempts_text(name, self._wrong))
        try:
            self.at = first_that_answers(name, self.left, timeout_s)
        except HostUnreachableError as error:
            lines = attempts_text(name, self._wrong).splitlines()[1:] if self._wrong else []
            raise HostUnreachableError("\n".join([str(error), *lines])) from None
        return self.at

    def check(self, site: str) -> None:
        """Note the site that has answered at that address; empty if none has."""
        assert self.at is not None
        self.found = site == self.worker.site
        if not self.found:
            self.left = self.left[self.left.index(self.at) + 1 :]
            other = f"the worker of {host_of_site(site)} answers there" if site else (
                "a program listens there, and no worker of this job answers"
            )  # fmt: skip
            self._wrong.append(Attempt(str(self.at), 0, other))


def reached(workers: Sequence[Worker], own: Keys, timeout_s: float) -> list[Address]:
    """The address by which this client reaches each of these workers. Tries all in parallel.

    Args:
        timeout_s: for the connections to a worker, and for its first answer; others share as much.

    Raises:
        HostUnreachableError: a worker has no such address; the text lists every attempt.
    """
    from concurrent.futures import ThreadPoolExecutor  # some ms, for clients with Slurm alone

    searches = [Search(one) for one in workers]
    answer_s = timeout_s
    with ThreadPoolExecutor(max_workers=min(32, len(workers))) as pool:
        while pending := [one for one in searches if not one.found]:
            at = list(pool.map(Search.dial, pending, repeat(timeout_s)))
            # A worker is dialled once, however many names lead to it.
            different = list(dict.fromkeys(at))
            sites = answering(different, own, answer_s)
            for one, address in zip(pending, at, strict=True):
                one.check(sites.get(different.index(address), ""))
            answer_s = timeout_s / max(1, *(len(one.left) for one in searches))
    return [one.at for one in searches if one.at is not None]


def _numeric(address: Address) -> list[Address]:
    """The addresses that a name stands for; the name itself if it is not known here."""
    try:
        return [Address("tcp", host, address.port) for host in resolve(address)]
    except OSError:
        return [address]
