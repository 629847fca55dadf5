"""The use of NVIDIA devices by each process: memory, and how busy it keeps them.

Runs in: the host agent. The figures are those of NVIDIA's management library, which the driver
brings; it is loaded with the first request on a host that has devices. A host without it, or a
container in which the driver shows no processes, has no figures.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

log = logging.getLogger("monarch.gpus")

LIBRARY = "libnvidia-ml.so.1"
EVERY_S = 1.0
_ROOM = 256  # processes of one device
_NOT_AVAILABLE = (1 << 64) - 1  # memory of a process that the driver does not tell


class GpuUse(msgspec.Struct, frozen=True):
    """Of one process, over all devices. `percent`: how busy it kept one, 200 for two."""

    memory_bytes: int
    percent: int


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Sample(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("at", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


class GpuMonitor:
    """Reads at most once in `EVERY_S` seconds, and only when it is asked."""

    def __init__(
        self,
        library: str = LIBRARY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._library = library
        self._clock = clock
        self._nvml: Any = None
        self._devices: list[Any] = []
        self._is_loaded = False
        self._read_at = float("-inf")
        self._seen_us: dict[int, int] = {}  # by device: the time of its last sample
        self._use: dict[int, GpuUse] = {}

    def use(self) -> dict[int, GpuUse]:
        """The use by pid, of processes that use a device."""
        if not self._is_loaded:
            self._is_loaded = True
            self._load()
        now = self._clock()
        if self._devices and now - self._read_at >= EVERY_S:
            self._read_at = now
            self._use = self._read()
        return self._use

    def _load(self) -> None:
        try:
            nvml = ctypes.CDLL(self._library)
            if nvml.nvmlInit_v2() != 0:
                return
            count = ctypes.c_uint()
            nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
            for index in range(count.value):
                device = ctypes.c_void_p()
                if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0:
                    self._devices.append(device)
        except (OSError, AttributeError) as error:  # no library, or an old one
            log.debug("no figures of NVIDIA devices: %s", error)
            return
        self._nvml = nvml

    def _read(self) -> dict[int, GpuUse]:
        memory: dict[int, int] = {}
        percent: dict[int, int] = {}
        try:
            for number, device in enumerate(self._devices):
                for pid, nbytes in self._memory(device):
                    memory[pid] = memory.get(pid, 0) + nbytes
                for pid, share in self._shares(number, device).items():
                    percent[pid] = percent.get(pid, 0) + share
        except AttributeError as error:  # an old library
            log.debug("no figures of NVIDIA devices: %s", error)
            self._devices = []
        pids = memory.keys() | percent.keys()
        # The driver has no sample of a process that has not used its device since the last one.
        return {pid: GpuUse(memory.get(pid, 0), percent.get(pid, 0)) for pid in pids}

    def _memory(self, device: Any) -> list[tuple[int, int]]:
        count, found = ctypes.c_uint(_ROOM), (_Process * _ROOM)()
        ask = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3
        if ask(device, ctypes.byref(count), found) != 0:
            return []
        return [
            (one.pid, 0 if one.memory == _NOT_AVAILABLE else one.memory)
            for one in found[: count.value]
        ]

    def _shares(self, number: int, device: Any) -> dict[int, int]:
        """The newest sample of each process since the last read, in per cent."""
        count, found = ctypes.c_uint(_ROOM), (_Sample * _ROOM)()
        since = ctypes.c_ulonglong(self._seen_us.get(number, 0))
        ask = self._nvml.nvmlDeviceGetProcessUtilization
        if ask(device, found, ctypes.byref(count), since) != 0:
            return {}
        newest: dict[int, Any] = {}
        for one in found[: count.value]:
            known = newest.get(one.pid)
            if known is None or one.at > known.at:
                newest[one.pid] = one
        if newest:
            self._seen_us[number] = max(one.at for one in newest.values())
        return {pid: one.sm for pid, one in newest.items()}
