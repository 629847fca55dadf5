"""Fault injection for tests of programs on meshes: see `docs/testing.md`.

from monarch.testing import faults

with faults.stopped(procs.slice(gpus=2)):
    ...
"""

from monarch._src.errors import MessageLostError
from monarch._src.events import FaultInjected
from monarch._src.testing import faults
from monarch._src.testing.plan import PlannedFault

__all__ = ["FaultInjected", "MessageLostError", "PlannedFault", "faults"]
