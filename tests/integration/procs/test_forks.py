"""A fork of a rank or of a client can call nobody, is told so, and ends with its own status."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, Channel, Port, ProcMesh, endpoint
from tests.integration.programs import PATIENCE_S, run
from tests.integration.sample_actors import Counter

Spawn = Callable[..., ProcMesh]
SAID = (
    "RuntimeEnded: this process is a fork of the one that has the mesh, and cannot call it; spawn "
    "meshes of its own here, or start it by another way than fork"
)
ASKS: dict[str, Callable[[Any, Port[int]], Any]] = {
    "call": lambda counter, _: counter.value_now.call().get(),
    "call_one": lambda counter, _: counter.value_now.call_one().get(),
    "choose": lambda counter, _: counter.value_now.choose().get(),
    "stream": lambda counter, _: [one.get() for one in counter.value_now.stream()],
    "broadcast": lambda counter, _: counter.add.broadcast(1),
    "port": lambda _, port: port.send(1),
    "stream without a look": lambda counter, _: counter.value_now.stream(),
}
ENDS: dict[str, tuple[Callable[[], object], int]] = {
    "exit": (lambda: sys.exit(3), 3),
    "exit without a status": (sys.exit, 0),
    "exit with a text": (lambda: sys.exit("a reason"), 1),
    "an error": (lambda: 1 / 0, 1),
    "returning": (lambda: None, 0),
    "_exit": (lambda: os._exit(5), 5),
}


def in_fork(work: Callable[[], object]) -> str:
    """What came of it in a fork."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            text = f"answer {work()}"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


def fork_that_ends(how: str) -> int:
    """The exit status of a fork that comes back to the code that had called us."""
    pid = os.fork()
    if not pid:
        ENDS[how][0]()
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Forker(Actor):
    """Forks."""

    def __init__(self, how: str = "") -> None:
        self.status = fork_that_ends(how) if how else None

    @endpoint
    def asks(self, how: str, counter: Any, port: Port[int]) -> str:
        return in_fork(lambda: ASKS[how](counter, port))

    @endpoint
    def ends(self, how: str) -> int:
        return fork_that_ends(how)

    @endpoint
    def status_of_constructor(self) -> int | None:
        return self.status

    @endpoint
    def multiprocess(self) -> int | None:
        process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(3,))
        process.start()
        process.join()
        return process.exitcode


class AsyncForker(Actor):
    """The same, on a loop."""

    @endpoint
    async def asks(self, how: str, counter: Any, port: Port[int]) -> str:
        return in_fork(lambda: ASKS[how](counter, port))

    @endpoint
    async def ends(self, how: str) -> int:
        return fork_that_ends(how)


@pytest.mark.parametrize("how", ASKS)
@pytest.mark.parametrize("kind", [Forker, AsyncForker])
def test_a_fork_of_a_rank_that_asks_an_actor_is_told_what_it_is(
    four: ProcMesh, kind: type[Any], how: str
) -> None:
    forker = four.slice(gpus=0).spawn("forker", kind)
    counter = four.slice(gpus=1).spawn("counter", Counter)
    port, _receiver = Channel[int].open()
    for _ in range(2):
        said = forker.asks.call_one(how, counter, port).get(PATIENCE_S)
        assert said == SAID
        counter.value_now.call_one().get(PATIENCE_S)  # its parent can call, and could be called
    assert counter.value_now.call_one().get(PATIENCE_S) == 0


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("kind", [Forker, AsyncForker])
def test_a_fork_of_a_rank_ends_with_its_own_status(
    four: ProcMesh, kind: type[Any], how: str
) -> None:
    on_main_thread = four.slice(gpus=2).spawn("first", kind)
    on_another = four.slice(gpus=2).spawn("second", kind)
    for forker in (on_main_thread, on_another):
        for _ in range(2):
            assert forker.ends.call_one(how).get(PATIENCE_S) == ENDS[how][1]


@pytest.mark.parametrize("how", ENDS)
def test_a_fork_that_a_constructor_makes_does_too(four: ProcMesh, how: str) -> None:
    forker = four.slice(gpus=3).spawn("forker", Forker, how)
    assert forker.status_of_constructor.call_one().get(PATIENCE_S) == ENDS[how][1]


def test_a_fork_that_a_bootstrap_function_makes_does_too(
    spawn_procs: Spawn, tmp_path: Path
) -> None:
    said = tmp_path / "said"

    def bootstrap() -> None:
        said.write_text(f"{fork_that_ends('exit')}")

    procs = spawn_procs({"gpus": 1}, bootstrap=bootstrap)
    procs.initialized.get(PATIENCE_S)
    assert said.read_text() == "3"


def test_multiprocessing_in_a_rank_keeps_the_status_of_its_child(four: ProcMesh) -> None:
    forker = four.slice(gpus=0).spawn("forker", Forker)
    assert forker.multiprocess.call_one().get(PATIENCE_S) == 3


def test_the_rank_that_was_forked_goes_on(four: ProcMesh) -> None:
    forker = four.slice(gpus=0).spawn("forker", AsyncForker)
    for how in ENDS:
        forker.ends.call_one(how).get(PATIENCE_S)
    assert forker.ends.call_one("exit").get(PATIENCE_S) == 3


def test_a_fork_of_a_client_is_told_what_it_is_and_keeps_its_status(tmp_path: Path) -> None:
    status, out, err = run(
        tmp_path,
        """
        import os, sys
        from monarch.actor import Channel, this_host
        from tests.integration.sample_actors import Counter
        from tests.integration.procs.test_forks import ASKS, in_fork

        procs = this_host().spawn_procs({"gpus": 1}, name="procs")
        counter = procs.spawn("counter", Counter)
        port, receiver = Channel.open()
        for how in ASKS:
            print(in_fork(lambda: ASKS[how](counter, port)))
        counter.value_now.call_one().get()
        for how in ASKS:
            print(in_fork(lambda: ASKS[how](counter, port)))
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(counter.value_now.call_one().get())
        procs.stop().get()
        """,
    )
    assert (status, err) == (0, "")
    assert out.splitlines() == [*(2 * len(ASKS) * [SAID]), "3", "0"]
