"""The cells of the fault matrix: what dies, when, and how; and what has to come of each.

Runs in: the process of pytest (`CELLS`, `outcome`), and ranks, which come to a gate at the moment
that a cell is about and there meet their end (`Doom`). Imports nothing heavy: procs import it.

A combination that means nothing is left out by a rule of `LEFT_OUT`, which says why.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from monarch.actor import Actor, context, current_rank, endpoint, this_host
from tests.integration.failing_actors import stand_with_the_gil
from tests.integration.gates import Gate

VICTIM = 1  # of three ranks
RANKS = 3

# --- cells ----------------------------------------------------------------------------------------

WHEN = {
    "constructing": "in the constructor of its actor",
    "idle": "nothing runs but a thread of the user's",
    "call": "in a call, sent to each rank directly, whose caller waits",
    "cast": "in a call that the host agent passes on, whose caller waits",
    "broadcast": "in a broadcast that the host agent passes on: nobody waits",
    "stopping": "its mesh is being stopped, and it cleans up",
    "spawning": "in the bootstrap function, before any actor",
}
DEATHS = {
    "exit-3": "exited with status 3",
    "exit-0": "exited with status 0",
    "SIGSEGV": "killed by SIGSEGV",
    "SIGABRT": "killed by SIGABRT",
    "SIGTERM": "killed by SIGTERM",
    "SIGKILL": "killed by SIGKILL",
}
FROM_OUTSIDE = ("SIGTERM", "SIGKILL", "SIGSTOP")
RAISES = {"raise": "ValueError", "SystemExit": "SystemExit", "interrupt": "KeyboardInterrupt"}
ENDS_ITSELF = ("abort", "kill")
HOW = {
    "proc": (*DEATHS, "SIGSTOP", "memory", "gil"),
    "actor": (*RAISES, *ENDS_ITSELF),
    "agent": ("SIGKILL", "SIGTERM", "SIGSEGV", "SIGSTOP"),
    "client": ("SIGKILL", "SIGTERM", "SIGSEGV", "exit-3"),
    "owner": ("SIGKILL", "SIGSEGV", "exit-3", "SystemExit", "abort"),
    "link": ("partition", "slow", "drop"),
}


@dataclass(frozen=True)
class Cell:
    """One combination; `str()` is the id of its test."""

    what: str
    when: str
    how: str

    def __str__(self) -> str:
        return f"{self.what}-{self.when}-{self.how}"


LEFT_OUT: tuple[tuple[str, Callable[[Cell], bool]], ...] = (
    (
        "what a thread of the user's raises, also for want of memory, ends that thread alone",
        lambda c: c.when == "idle" and (c.how in RAISES or c.how == "memory"),
    ),
    (
        "there is no actor yet that could end itself",
        lambda c: c.when == "spawning" and c.how in ENDS_ITSELF,
    ),
    (
        "an actor that is being stopped has been ended already",
        lambda c: c.what == "actor" and c.when == "stopping" and c.how in ENDS_ITSELF,
    ),
    (
        "an owner owns nothing before it is made",
        lambda c: c.what == "owner" and c.when in ("constructing", "spawning"),
    ),
    (
        "an owner that is being stopped stops what it owns before its end",
        lambda c: c.what == "owner" and c.when == "stopping" and c.how in ("SystemExit", "abort"),
    ),
    (
        "a thread of the user's that raises does not end the owner",
        lambda c: c.what == "owner" and c.when == "idle" and c.how == "SystemExit",
    ),
    (
        "nothing is sent that could be lost",
        lambda c: c.how == "drop" and c.when in ("constructing", "idle", "stopping", "spawning"),
    ),
)
ALL = [Cell(what, when, how) for what in HOW for when, how in product(WHEN, HOW[what])]
CELLS = [cell for cell in ALL if not any(left_out(cell) for _, left_out in LEFT_OUT)]


# --- the required outcomes ------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What the caller gets: an error of that class (none: an answer, when all is over).

    `kind`, `says` and `endpoint` are of the failure in it; `fault`: the client's hook is told too.
    `lives`: the actor answers later calls.
    """

    error: str = ""
    kind: str = ""
    says: str = ""
    endpoint: str | None = None
    fault: bool = False
    lives: bool = True


LIVES = Outcome()


def outcome(cell: Cell) -> Outcome:
    """Of a proc or an actor, for its caller."""
    running = "meet" if cell.when in ("call", "cast", "broadcast") else None
    if cell.how in ("SIGSTOP", "gil") or cell.when == "stopping":
        return LIVES  # to be busy is no failure, and to end while it is to end is none
    if cell.how in DEATHS:
        says = DEATHS[cell.how]
        return Outcome("SupervisionError", "proc died", says, running, fault=True, lives=False)
    name = RAISES.get(cell.how, "MemoryError" if cell.how == "memory" else cell.how)
    if cell.when == "spawning":
        # A bootstrap function is told by the calls that wait for its rank alone.
        return Outcome("SupervisionError", "constructor", name, fault=False, lives=False)
    if cell.when == "constructing" and cell.how not in ENDS_ITSELF:
        return Outcome("SupervisionError", "constructor", name, fault=True, lives=False)
    if cell.how in ("raise", "memory"):
        if cell.when in ("call", "cast"):
            return Outcome("ActorError", "endpoint", name)
        return Outcome("SupervisionError", "nobody waited", name, fault=True, lives=False)
    return Outcome("SupervisionError", "actor died", name, fault=True, lives=False)


# --- in ranks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Doom:
    """What a rank meets: it stands at the gate, and when that opens, this happens to it."""

    gate: Gate
    how: str

    def meet(self, *, rank: int | None = None) -> None:
        """Of the victim; the other ranks go on."""
        here = context().actor_instance.rank.rank if rank is None else rank
        if here == VICTIM:
            self.gate.pass_through()
            self.happen()

    def happen(self) -> None:
        """To this process, from its own code."""
        match self.how:
            case "exit-3" | "exit-0":
                os._exit(int(self.how[-1]))
            case "SIGSEGV":
                ctypes.string_at(0)
            case "SIGABRT":
                os.abort()
            case "memory":
                run_out_of_memory()
            case "gil":
                stand_with_the_gil(self.gate)
            case "raise":
                raise ValueError("doomed")
            case "SystemExit":
                sys.exit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "abort":
                context().actor_instance.abort("doomed")
            case "kill":
                context().actor_instance.kill("doomed")
            case _:
                pass


def run_out_of_memory() -> None:
    """Ask for more than this process may have."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 26), before[1]))
    try:
        bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def bootstrap(doom: Doom) -> None:
    """Before any actor."""
    doom.meet(rank=current_rank().rank)


class Doomed(Actor):
    """Meets its end in an endpoint, or in a thread that it started."""

    @endpoint
    def rank(self) -> int:
        return context().actor_instance.rank.rank

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def meet(self, doom: Doom) -> int:
        doom.meet()
        return context().actor_instance.rank.rank

    @endpoint
    def begin_thread(self, doom: Doom) -> None:
        here = context().actor_instance

        def run() -> None:
            doom.gate.pass_through()
            if doom.how == "abort":
                here.abort("doomed")
            elif doom.how == "kill":
                here.kill("doomed")
            else:
                doom.happen()

        if here.rank.rank == VICTIM:
            threading.Thread(target=run, daemon=True).start()


class DoomedInConstructor(Actor):
    """Meets its end before it is made."""

    def __init__(self, doom: Doom) -> None:
        doom.meet()

    @endpoint
    def rank(self) -> int:
        return context().actor_instance.rank.rank


class DoomedInCleanup(Doomed):
    """Meets its end while it cleans up."""

    def __init__(self, doom: Doom) -> None:
        self.doom = doom

    def __cleanup__(self, exception: BaseException | None) -> None:
        self.doom.meet()


class Owner(DoomedInCleanup):
    """Owns a mesh of two."""

    @endpoint
    def own(self) -> list[int]:
        if context().actor_instance.rank.rank != VICTIM:
            return []
        self.procs = this_host().spawn_procs({"at": 2}, name="owned")
        self.owned = self.procs.spawn("owned", Doomed)
        return self.owned.pid.call().get().values()

    def __cleanup__(self, exception: BaseException | None) -> None:
        if exception is None:
            self.doom.meet()
