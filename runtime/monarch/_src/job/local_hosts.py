"""`hosts_from_config`: the hosts of a name, independent of their place.

Runs in: clients. Owns: workers that stand in for hosts, which end with this process.
"""

from __future__ import annotations

from monarch._src.job.contexts import load_current_job
from monarch._src.job.trait import check_names
from monarch._src.mesh.meshes import HostMesh
from monarch._src.net.state.access import TRUST_ALL
from monarch._src.session.workers.api import attach_to_workers, has_workers, start_local_worker

_COUNT = 2
_stand_ins: dict[str, HostMesh] = {}


def hosts_from_config(name: str) -> HostMesh:
    """The hosts of that name: of the current job of this directory if it has such a mesh.

    Otherwise two workers of this machine stand in for them. They end with this program.

    Raises:
        ValueError: that cannot name a mesh. JobError, SessionError: the hosts cannot be used.
    """
    check_names({name: None}, "a configuration")
    try:
        job = load_current_job()
    except FileNotFoundError:
        job = None
    if job is not None and job.active:
        state = job.state(cached_path=None)
        if name in list(state):
            return state[name]
    found = _stand_ins.get(name)
    if found is None or not has_workers(found):
        found = _stand_ins[name] = _started(name)
    return found


def _started(name: str) -> HostMesh:
    addresses = [start_local_worker() for _ in range(_COUNT)]
    return attach_to_workers(ca=TRUST_ALL, workers=addresses, name=name)
