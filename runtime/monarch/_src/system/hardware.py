"""The resources of this host for binding processes: cpus, memory nodes, NVIDIA devices.

Runs in: any process. The module reads a few small files and starts no program.
"""

from __future__ import annotations

import os
import re

CUDA = "CUDA_VISIBLE_DEVICES"
MOST_CPUS = 1 << 16
_NVIDIA_DEVICE = re.compile(r"nvidia\d+")
_PART = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")


def parse_cpu_list(text: str) -> list[int]:
    """Parse a list: `"0-3,8"` becomes `[0, 1, 2, 3, 8]`, sorted and without repetition.

    Raises:
        ValueError: the text is malformed; the error names the part.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} in {text!r} is neither a number nor a range such as 0-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"{part!r} in {text!r} ends before it begins")
        if last >= MOST_CPUS:
            raise ValueError(f"{part!r} in {text!r} is beyond {MOST_CPUS - 1}")
        found.update(range(first, last + 1))
    return sorted(found)


def list_text(numbers: list[int]) -> str:
    """The inverse of `parse_cpu_list`: `[0, 1, 2, 3, 8]` becomes `0-3,8`."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def online_cpus() -> list[int]:
    """The numbers of the cpus of this host."""
    return _online("/sys/devices/system/cpu/online") or list(range(os.cpu_count() or 1))


def online_nodes() -> list[int] | None:
    """The numbers of the memory nodes; None if the system does not report them."""
    return _online("/sys/devices/system/node/online")


def nvidia_devices(folder: str = "/dev") -> int:
    """How many NVIDIA devices this host, or the container, has."""
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    return sum(_NVIDIA_DEVICE.fullmatch(name) is not None for name in names)


def _online(path: str) -> list[int] | None:
    try:
        with open(path) as file:
            return parse_cpu_list(file.read().strip())
    except (OSError, ValueError):
        return None
