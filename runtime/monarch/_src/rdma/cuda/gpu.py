"""The GPUs of this process: its devices, and the pinned memory that bytes pass through.

Runs in: any process that uses memory of a GPU, on threads that move bytes. A fork inherits none of
it and begins anew.
"""

from __future__ import annotations

import os
from typing import Any

from monarch._src.net.local.interrupt import GuardedLock
from monarch._src.rdma.cuda import driver as cuda
from monarch._src.rdma.cuda.devices import Devices
from monarch._src.rdma.cuda.driver import Driver, GpuError
from monarch._src.rdma.cuda.pinned_chunks import Chunks

_making = GuardedLock()
_made: tuple[int, Gpu] | None = None
_functions: Any = None  # of a driver that replaces this machine's in tests


def gpu() -> Gpu:
    """The GPUs of this process, found on first use. Raises NoGpuError."""
    global _made
    made = _made
    if made is None or made[0] != os.getpid():
        with _making:
            made = _made
            if made is None or made[0] != os.getpid():
                made = _made = os.getpid(), Gpu(Driver(_functions or cuda.load()))
    return made[1]


def gpu_if_used() -> Gpu | None:
    """The same, if they have been used; otherwise None."""
    made = _made
    return None if made is None or made[0] != os.getpid() else made[1]


def why_no_gpu() -> str:
    """Why this process can use no GPU; empty if it can. Initializes the driver."""
    try:
        gpu()
    except GpuError as error:
        return str(error)
    return ""


def use_functions(functions: Any) -> None:
    """For tests: use a driver with these functions from now on; None: the machine's own."""
    global _made, _functions
    with _making:
        _made, _functions = None, functions


class Gpu(Devices):
    """The GPUs of one process, with pinned memory of the host for their copies."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.chunks = Chunks(self)

    def give_back(self) -> None:
        """Release all idle resources. They are made anew when they are needed again.

        A device that has failed releases nothing; the process keeps its resources until it ends.
        """
        self.chunks.give_back()
        super().give_back()
