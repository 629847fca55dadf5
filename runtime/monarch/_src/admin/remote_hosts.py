"""Hosts of other machines, which the admin server observes over links with an observer's key.

Runs in: the admin server and the command line; a thread for each host while it is asked. An
observer's key allows a snapshot of ranks only, so there are no actors, figures of endpoints, lines
or stacks of these hosts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from monarch._src.admin.state.nodes import HostSource, Missing
from monarch._src.net.hosts import keys as key_files
from monarch._src.net.hosts.keys import Keys
from monarch._src.net.remote_observer import look_at
from monarch._src.net.state.access import TRUST_ALL, Role
from monarch._src.net.state.addresses import Address, parse_address
from monarch._src.shape import Extent
from monarch._src.wire.messages import MeshState, Snapshotted

MOST_THREADS = 32


@dataclass(frozen=True, repr=False)
class RemoteHosts:
    """The addresses of workers, and the keys to look at them with."""

    addresses: tuple[Address, ...]
    keys: Keys | None

    @staticmethod
    def load(addresses: Sequence[str], own: str | None, key: str | None) -> RemoteHosts:
        """The hosts at these addresses, with the keys in a directory.

        Raises:
            ValueError: an address or the keys are wrong. OSError: the keys cannot be read.
        """
        if own is None:
            raise ValueError(f"pass the keys of the job: --keys DIRECTORY (or {TRUST_ALL})")
        pair = None if own == TRUST_ALL else key_files.load(own, key, Role.OBSERVER)
        return RemoteHosts(tuple(parse_address(one) for one in addresses), pair)

    def look(self, timeout_s: float) -> list[RemoteAnswer]:
        """Ask all of them at the same time."""
        if not self.addresses:
            return []
        with ThreadPoolExecutor(min(MOST_THREADS, len(self.addresses))) as pool:
            look = partial(_look, keys=self.keys, timeout_s=timeout_s)
            return list(pool.map(look, self.addresses))


@dataclass(frozen=True)
class RemoteAnswer:
    """The answer of one host: its rows, or the reason why they are missing."""

    source: HostSource
    hosts: tuple[dict[str, Any], ...] = ()
    procs: tuple[dict[str, Any], ...] = ()
    missing: tuple[Missing, ...] = ()


def _look(address: Address, keys: Keys | None, timeout_s: float) -> RemoteAnswer:
    try:
        site, found = look_at(address, keys, timeout_s)
    except OSError as error:
        name = unreachable_name(address)
        reason = Missing("procs", f"session {name}", str(error))
        return RemoteAnswer(HostSource(name, str(address), str(address)), missing=(reason,))
    return answer_of(address, site, found)


def unreachable_name(address: Address) -> str:
    """The name of a host whose site is not known, in references."""
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in str(address))[:64]


def answer_of(address: Address, site: str, found: Snapshotted) -> RemoteAnswer:
    """The rows of a snapshot, as a host agent gives them in `hosts` and `procs`."""
    count = sum(len(mesh.ranks) for mesh in found.meshes)
    host = {
        "session": site, "host": site, "agent_pid": None, "cores": None,
        "meshes": len(found.meshes), "procs": count, "log_lines": None, "log_lines_dropped": None,
    }  # fmt: skip
    procs = tuple(row for mesh in found.meshes for row in _rows(site, mesh))
    return RemoteAnswer(HostSource(site, str(address), str(address)), (host,), procs)


def _rows(site: str, mesh: MeshState) -> list[dict[str, Any]]:
    extent = Extent(mesh.labels, mesh.sizes)
    return [
        {
            "session": site, "host": site, "mesh_id": mesh.mesh, "mesh": mesh.name,
            "rank": rank.rank, "point_json": json.dumps(dict(extent.point_of_rank(rank.rank))),
            "pid": rank.pid or None, "state": rank.state, "since_s": rank.since_s,
            "actor": rank.actor or None, "endpoint": rank.endpoint or None,
            "messages": rank.messages, "errors": rank.errors, "busy_s": rank.busy_s,
            "rss_bytes": rank.rss_bytes or None, "cpu_s": None, "gpu_bytes": None,
            "gpu_percent": None, "restarts": rank.restarts, "failure": rank.failure or None,
            "function": None, "file": None, "line": None,
        }
        for rank in mesh.ranks
    ]  # fmt: skip
