"""Functions that tests map over items: they raise, die or wait as an item says."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tests.integration.gates import Gate


def square(item: int) -> int:
    return item * item


async def square_later(item: int) -> int:
    return item * item


def pid(item: object) -> int:
    return os.getpid()


def raise_on_sevens(item: int) -> int:
    if item % 10 == 7:
        raise ValueError(f"{item} is not for me")
    return item


def leave(item: int) -> int:
    sys.exit(item)


def return_a_lock(item: int) -> Any:
    return threading.Lock() if item == 2 else item


def kill_the_first(item: tuple[str, int]) -> int:
    """The process that gets the number 5 first is killed; all others return."""
    folder, number = item
    if number == 5:
        try:
            os.close(os.open(Path(folder, "killed"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return number
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def kill_on_three(item: int) -> int:
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def kill_always(item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def note_begin(item: tuple[str, int]) -> int:
    """Leave a file of the item's number; the first raises."""
    folder, number = item
    Path(folder, str(number)).touch()
    if number == 0:
        raise ValueError("the first item")
    return number


def pass_gate(item: tuple[Gate, int]) -> int:
    gate, number = item
    gate.pass_through()
    return number


def wait_for_ever(item: int) -> int:
    threading.Event().wait()
    return item


def total(item: Any) -> float:
    return float(item.sum())


def grow(item: int) -> Any:
    import numpy

    return numpy.full(1 << 18, item)
