"""Programs that keep a session and end, and what tests of them share."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from monarch._src.session import directories, reap
from monarch.actor import shutdown_context
from tests.integration.programs import Program, running

# Keeps two procs named `workers` with a counter whose class is of its own `__main__`; then it does
# what it is told, line by line, and says what that printed, as one line each.
KEEPER = """
    import contextlib, io, json, os, sys, time
    from monarch.actor import Actor, SupervisionError, endpoint, get_or_spawn_controller, this_host
    import monarch.actor
    from monarch.config import configure
    from monarch.session import SessionError, attach, detach, keep
    from tests.integration.sample_actors import Echo, Recorder, Teller
    from tests.integration.callers import Ring
    from tests.integration.gates import Gate
    from tests.integration.failing_actors import Failing, Faulty

    class Mine(Actor):
        def __init__(self):
            self.value = 0

        @endpoint
        def add(self, amount):
            self.value += amount
            return self.value

        @endpoint
        def add_at(self, gate, amount):
            gate.pass_through()
            self.value += amount
            return self.value

        @endpoint
        def fail_at(self, gate):
            gate.pass_through()
            raise ValueError("after the client")

    configure(enable_log_forwarding=False)
    told = []
    monarch.actor.unhandled_fault_hook = told.append
    name = sys.argv[1]
    SETUP
    print("[]", flush=True)
    for line in sys.stdin:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            try:
                exec(line)
            except Exception as error:
                print(type(error).__name__, str(error).replace(chr(10), " / "))
        print(json.dumps(said.getvalue().splitlines()), flush=True)
"""
KEEPS = """
    procs = this_host().spawn_procs({"gpus": 2}, name="workers")
    mine = procs.spawn("mine", Mine)
    mine.add.call(1).get()
    keep(name, [procs])
"""
# An actor that has procs of its own, which ask something of the client.
TREE = """
    class Leaf(Actor):
        @endpoint
        def ask(self):
            return get_or_spawn_controller("echo", Echo).get().same.call_one(7).get()

    class Tree(Actor):
        def __init__(self, leaves):
            self.procs = this_host().spawn_procs({"leaves": leaves})
            self.leaves = self.procs.spawn("leaves", Leaf)

        @endpoint
        def ask(self):
            return list(self.leaves.ask.call().get().values())
"""
# One whose procs are started again, and ask that as they begin.
RENEWED = """
    from monarch.supervision import Restart

    class Egg(Actor):
        def __init__(self):
            echo = get_or_spawn_controller("echo", Echo).get()
            self.heard = echo.same.call_one(7).get()

        @endpoint
        def say(self):
            return self.heard

        @endpoint
        def die(self):
            os._exit(3)

    class Nest(Actor):
        def __init__(self, count):
            often = Restart(at_most=1000, back_off=0)
            procs = this_host().spawn_procs({"eggs": count}, restart=often)
            self.each = [procs.slice(eggs=rank).spawn(f"egg {rank}", Egg) for rank in range(count)]

        @endpoint
        def renew(self):
            for death in [egg.die.call_one() for egg in self.each]:
                death.exception()
            return [answer.get() for answer in [egg.say.call_one() for egg in self.each]]
"""
ATTACHES = """
    session = attach(name)
    procs, mine = session["workers"], session["mine"]
"""


class Keeper:
    """A running program of that kind."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def do(self, line: str) -> list[str]:
        """Have it execute a line; what it printed meanwhile."""
        self.program.say(line)
        return self.said()

    def said(self) -> list[str]:
        """What the line that it executes prints; waits for its end."""
        line = self.program.line()
        assert line, self.program.end()
        return json.loads(line)

    def value(self, expression: str) -> str:
        """The repr of an expression there."""
        (line,) = self.do(f"print(repr({expression}))")
        return line


@contextmanager
def keeper(
    folder: Path, name: str, setup: str = KEEPS, *arguments: str, command: Sequence[str] = ()
) -> Iterator[Keeper]:
    """Such a program, when it is ready; killed on the way out, which ends no kept session.

    `arguments`: for the setup, in `sys.argv[2:]`. `command`: what executes it, if not Python here.
    """
    source = KEEPER.replace("    SETUP\n", setup)
    with running(folder, source, name, *arguments, command=command) as program:
        found = Keeper(program)
        found.said()
        yield found


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """That process is stopped, and goes on afterwards."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def kept_name(base: Path) -> Iterator[str]:
    """A name that nobody else uses; the session that has it is ended on the way out."""
    shutdown_context()
    name = f"test-{secrets.token_hex(4)}"
    try:
        yield name
    finally:
        shutdown_context()
        found = [one for one in directories.find_sessions([str(base)]) if one.kept is not None]
        outcome = reap.end([one for one in found if one.kept and one.kept.name == name])
        assert not outcome.complaints


def info(base: Path, name: str) -> directories.Session:
    """That session as others see it."""
    (found,) = [
        one
        for one in directories.find_sessions([str(base)])
        if one.kept is not None and one.kept.name == name
    ]
    return found
