"""`hosts_from_config`: the hosts of a name, independent of their place.

Runs in: clients. Owns: workers that stand in for hosts, which end with this process.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile

from monarch._src.job.contexts import load_current_job
from monarch._src.job.trait import check_names
from monarch._src.mesh.meshes import HostMesh
from monarch._src.net import session_directory as sessions
from monarch._src.net.state.access import TRUST_ALL
from monarch._src.session.workers.api import attach_to_workers, has_workers, start_worker

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
    directory = tempfile.mkdtemp(prefix="mjob-", dir=sessions.base_directory())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    addresses = [f"ipc://{directory}/{index}" for index in range(_COUNT)]
    for address in addresses:
        start_worker(address, TRUST_ALL)
    return attach_to_workers(ca=TRUST_ALL, workers=addresses, name=name)
