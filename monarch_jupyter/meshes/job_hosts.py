"""The hosts of a job, by its name or path."""

from __future__ import annotations

import os

from monarch.actor import HostMesh
from monarch.job import JobError, job_load, job_names, job_path
from monarch.session import SessionError
from monarch_jupyter.errors import CommandError


def hosts_of(job: str, mesh: str, count: int | None) -> HostMesh:
    """Attach to a job and return its mesh `mesh` (empty: its only one), or `count` hosts.

    Raises:
        CommandError: there is no such job or mesh, it has fewer hosts, or they are unavailable.
    """
    try:
        named = job in job_names()  # takes precedence over a file of this name
        path = job if not named and (os.sep in job or os.path.exists(job)) else job_path(job)
        found = job_load(path)
        if not found.active:
            raise CommandError(
                f"the job {job} has no hosts; job.state({str(path)!r}) reserves them"
            )
        state = found.state(cached_path=None)
    except FileNotFoundError:
        there = ", ".join(job_names()) or "none"
        raise CommandError(
            f"there is no job {job} (by name there is {there}); give a name or the path of a "
            "record, and make one with job.state(job_path(NAME))"
        ) from None
    except (JobError, SessionError, OSError, ValueError) as error:
        raise CommandError(f"the job {job} cannot be used: {error}") from None
    names = list(state)
    if not mesh and len(names) > 1:
        raise CommandError(f"the job {job} has several meshes: give --job {job}:{names[0]}")
    if mesh and mesh not in names:
        raise CommandError(f"the job {job} has no mesh {mesh}; it has {', '.join(names)}")
    hosts = state[mesh or names[0]]
    if count is None:
        return hosts
    there = hosts.sizes.get("hosts", 0)
    if count > there:
        raise CommandError(f"hosts={count}: the job {job} has {there}; leave hosts= out for all")
    return hosts.slice(hosts=slice(0, count))
