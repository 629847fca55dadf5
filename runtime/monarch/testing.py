"""Faults on purpose and mocked actors, for tests of programs on meshes.

See `docs/reference/fault_injection.md`.

from monarch.testing import faults

with faults.stopped(procs.slice(gpus=2)):
    ...
"""

from monarch._src.errors import MessageLostError
from monarch._src.events import FaultInjected
from monarch._src.testing import faults
from monarch._src.testing.faults import PlannedFault
from monarch._src.testing.mocks import patch_actor, patch_tensor_engine
from monarch.actor import context as _context  # registers this process as a client

del _context

__all__ = [
    "FaultInjected",
    "MessageLostError",
    "PlannedFault",
    "faults",
    "patch_actor",
    "patch_tensor_engine",
]
