"""Functions that tests map over items: they raise, die or wait as an item says."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any, ClassVar

from tests.integration.gates import Gate


def square(item: int) -> int:
    return item * item


async def square_later(item: int) -> int:
    return item * item


def pid(item: object) -> int:
    return os.getpid()


def pid_after(seconds: float) -> int:
    time.sleep(seconds)  # the time that an item takes
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


class Skipped(BaseException):
    """No `Exception`, as those by which test runners and event loops leave a function."""


def raise_on_two(given: tuple[type[BaseException], int]) -> int:
    kind, item = given
    if item == 2:
        raise kind("of item 2")
    return item


async def await_what_is_cancelled(item: int) -> int:
    if item == 2:
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task
    return item


def pass_gate_and_change_the_error(item: tuple[Gate, int, Any]) -> None:
    """Wait at the gate; an interrupt of the wait becomes an error of this function."""
    gate, number, folder = item
    Path(folder, str(number)).touch()
    try:
        gate.pass_through()
    except BaseException:
        raise Skipped from None


class Stays:
    """Can be pickled, and be rebuilt in the process that made it only."""

    def __init__(self, raises: type[BaseException] = LookupError) -> None:
        self.raises = raises

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt_at_home, (os.getpid(), self.raises)


def _rebuilt_at_home(home: int, raises: type[BaseException]) -> Stays:
    if os.getpid() != home:
        raise raises("far from home")
    return Stays(raises)


class Once:
    """Can be pickled as often as its number says, and not again."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __reduce__(self) -> tuple[Any, ...]:
        self.times -= 1
        if self.times < 0:
            raise LookupError("pickled too often")
        return int, (7,)


def count_and_return(given: tuple[Path, int, object]) -> object:
    """Leave a mark of each run of the item."""
    folder, number, value = given
    with open(Path(folder, str(number)), "a") as file:
        file.write(".")
    return value


def make_on_two(given: tuple[Path, int, type[Any]]) -> Any:
    """Instances of the class for item 2, and numbers for others."""
    folder, number, kind = given
    count_and_return((folder, number, None))
    return kind() if number == 2 else number


def same(item: Any) -> Any:
    return item


def pass_gate_at_zero(item: tuple[Gate, int]) -> int:
    gate, number = item
    if number == 0:
        gate.pass_through()
    return number


class Counted:
    """A large value; a process knows those of it that are alive there."""

    alive: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()

    def __init__(self, item: int, size: int) -> None:
        self.item = item
        self.data = bytearray(size)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.alive.add(self)


def counted(item: tuple[int, int]) -> Counted:
    return Counted(*item)
