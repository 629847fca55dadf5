"""The end of a host whose ranks may save their work first, and their signal for it.

Runs in: the host agent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import msgspec

DRAIN = b"d"  # in the pipe of the agent's signals: SIGTERM, and ranks have a grace
TOLD_TO_END = "its worker was told to end by SIGTERM"


class Drain(msgspec.Struct, frozen=True):
    """How procs end after a SIGTERM to their agent: within `grace_s` seconds, unless that is 0.

    `tells_ranks`: whether the agent hands the signal on to procs that handle it.
    """

    grace_s: float = 0.0
    tells_ranks: bool = True


def hand_on(number: int, pids: Iterable[int]) -> None:
    """Send a signal to the procs that have a handler for it; it would end the others.

    Programs that such a proc has started in its process group get it too, as a scheduler does it.
    """
    for pid in pids:
        if handles(pid, number):
            with suppress(ProcessLookupError):
                os.killpg(pid, number)


def handles(pid: int, number: int) -> bool:
    """Whether that process has a handler for a signal. False where /proc does not tell."""
    with suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key == "SigCgt":
                return bool(int(value, 16) >> (number - 1) & 1)
    return False
