"""Actors that raise, hold or die as they are told, and exceptions that cannot travel."""

from __future__ import annotations

import builtins
import ctypes
import os
import signal
import subprocess
import sys
import threading

from monarch.actor import Actor, context, endpoint
from tests.integration.gates import Gate


def stand_with_the_gil(gate: Gate) -> None:
    """Stand at a gate in C, without giving the interpreter away."""
    pipe, entered = os.open(gate.leave, os.O_RDONLY), os.open(gate.entered, os.O_WRONLY)
    c, room = ctypes.PyDLL(None), ctypes.create_string_buffer(1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e6)  # nobody else runs between the two
    c.write(entered, b".", 1)
    c.read(pipe, room, 1)
    sys.setswitchinterval(interval)
    os.close(pipe)
    os.close(entered)


class Failing(Actor):
    """Raises what it is told."""

    @endpoint
    def raise_value_error(self, text: str = "a bad value") -> None:
        raise ValueError(text)

    @endpoint
    def raise_on(self, ranks: list[int], text: str = "not here") -> int:
        rank = context().message_rank.rank
        if rank in ranks:
            raise ValueError(text)
        return rank

    @endpoint
    def raise_at_gate(self, ranks: list[int], gate: Gate) -> int:
        rank = context().message_rank.rank
        if rank in ranks:
            raise ValueError("at once")
        gate.pass_through()
        return rank

    @endpoint
    def raise_in_turn(self, first: int, gate: Gate) -> None:
        """Raise at once on that rank, and behind the gate on the others."""
        rank = context().message_rank.rank
        if rank != first:
            gate.pass_through()
        raise ValueError(f"bad shard {rank}")

    @endpoint
    def fail_before_others_run(self, gate: Gate) -> None:
        """Raise behind the gate, before another thread of this process has had a turn."""
        sys.setswitchinterval(3600.0)
        stand_with_the_gil(gate)
        raise ValueError("nobody else had a turn")

    @endpoint
    def raise_with_cause(self) -> None:
        try:
            {}["absent"]
        except KeyError as error:
            raise RuntimeError("could not look it up") from error

    @endpoint
    def raise_in_a_chain(self, length: int) -> None:
        error = ValueError("0")
        for number in range(1, length):
            after = ValueError(str(number))
            after.__cause__, error = error, after
        raise error

    @endpoint
    def raise_while_handling(self) -> None:
        try:
            {}["absent"]
        except KeyError:
            self.could_not_repair()

    def could_not_repair(self) -> None:
        raise RuntimeError("could not repair it")

    @endpoint
    def raise_a_group(self) -> None:
        group = vars(builtins)["ExceptionGroup"]  # of Python 3.11
        raise group("two shards", [ValueError("shard 3"), OSError("shard 5")])

    @endpoint
    def raise_a_cycle(self) -> None:
        error, cause = ValueError("one"), ValueError("two")
        error.__cause__, cause.__cause__ = cause, error
        raise error

    @endpoint
    def recurse(self, depth: int = 0) -> None:
        self.deeper(depth)

    def deeper(self, depth: int) -> None:
        self.deeper(depth + 1)

    @endpoint
    def recurse_in_turns(self) -> None:
        self.turn()

    def turn(self) -> None:
        self.other_turn()

    def other_turn(self) -> None:
        self.turn()

    @endpoint
    def raise_with_note(self) -> None:
        error = ValueError("wrong")
        error.add_note("in the second batch")  # pyright: ignore[reportAttributeAccessIssue]
        raise error

    @endpoint
    def raise_unpicklable(self) -> None:
        raise HoldsALock("has a lock")

    @endpoint
    def raise_picky(self) -> None:
        raise Picky("one", "two")

    @endpoint
    def raise_mute(self) -> None:
        raise Mute

    @endpoint
    def raise_base(self) -> None:
        raise KeyboardInterrupt

    @endpoint
    def leave(self) -> None:
        sys.exit(3)

    @endpoint
    def fine(self) -> str:
        return "fine"


class HoldsALock(Exception):
    """Can't be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Picky(Exception):
    """Pickles, but can't be rebuilt: pickle calls it with one argument."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Mute(Exception):
    """Can't even say what it is."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class Asking(Actor):
    """Calls another actor, whose error is its own then."""

    def __init__(self, failing: Failing) -> None:
        self.failing = failing

    @endpoint
    def ask(self) -> None:
        self.failing.raise_with_cause.call_one().get()


class BadConstructor(Actor):
    """Never lives, on the ranks it is told."""

    def __init__(self, ranks: list[int] | None = None) -> None:
        rank = context().actor_instance.rank.rank
        if ranks is None or rank in ranks:
            raise LookupError(f"no data for rank {rank}")

    @endpoint
    def rank(self) -> int:
        return context().actor_instance.rank.rank


class Faulty(Actor):
    """An actor whose endpoints end, crash or block its process."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def say_on_stderr(self, *lines: str) -> None:
        for line in lines:
            print(line, file=sys.stderr)

    @endpoint
    def kill_self(self, number: int) -> None:
        os.kill(os.getpid(), number)
        signal.pause()

    @endpoint
    def kill_self_on(self, ranks: list[int], number: int) -> int:
        rank = context().actor_instance.rank.rank
        if rank in ranks:
            os.kill(os.getpid(), number)
            signal.pause()
        return rank

    @endpoint
    def exit_hard(self, status: int) -> None:
        os._exit(status)

    @endpoint
    def crash(self) -> None:
        ctypes.string_at(0)

    @endpoint
    def hold(self, gate: Gate) -> int:
        gate.pass_through()
        return context().actor_instance.rank.rank

    @endpoint
    def hold_on(self, ranks: list[int], gate: Gate) -> int:
        rank = context().actor_instance.rank.rank
        if rank in ranks:
            gate.pass_through()
        return rank

    @endpoint
    def hold_the_gil(self, gate: Gate) -> None:
        stand_with_the_gil(gate)

    @endpoint
    def start_grandchild(self) -> int:
        return subprocess.Popen(["sleep", "600"]).pid


class HoldsInConstructor(Actor):
    """Its constructor stands at a gate."""

    def __init__(self, gate: Gate, ranks: list[int]) -> None:
        if context().actor_instance.rank.rank in ranks:
            gate.pass_through()

    @endpoint
    def rank(self) -> int:
        return context().actor_instance.rank.rank


class HoldsInCleanup(Actor):
    """Its clean-up stands at a gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    def __cleanup__(self, exception: BaseException | None) -> None:
        self.gate.pass_through()


class DiesInConstructor(Actor):
    """Its process ends while it is made."""

    def __init__(self, ranks: list[int]) -> None:
        if context().actor_instance.rank.rank in ranks:
            os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def rank(self) -> int:
        return context().actor_instance.rank.rank
