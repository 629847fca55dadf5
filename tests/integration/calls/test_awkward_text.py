"""Text that is hard to carry: what UTF-8 has no room for, and what is longer than a message."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import Actor, ActorError, ProcMesh, SupervisionError, endpoint
from tests.conftest import Faults
from tests.integration.failing_actors import Failing
from tests.integration.sample_actors import Echo, Teller

Spawn = Callable[..., ProcMesh]
# Bytes that are no UTF-8, as Python shows them in names of files and in the environment.
UNDECODED = b"caf\xe9 \xff".decode("utf-8", "surrogateescape")
MEBI = 1 << 20


class Looks(Actor):
    """Says where it is."""

    @endpoint
    def around(self, variable: str) -> tuple[str, str | None, bool]:
        here = os.getcwd()
        return here, os.environ.get(variable), here in sys.path

    @endpoint
    def open(self, path: str) -> None:
        Path(path).open().close()


class Wordy(Actor):
    """Fails in its constructor, at length."""

    def __init__(self, length: int) -> None:
        raise ValueError("x" * length)

    @endpoint
    def nothing(self) -> None: ...


def test_an_exception_says_the_name_of_a_file_that_is_not_utf_8(four: ProcMesh) -> None:
    looks = four.spawn("looks", Looks)
    error = looks.open.call(f"/nowhere/{UNDECODED}").exception()
    assert isinstance(error, ActorError)
    assert isinstance(error.exception, FileNotFoundError)
    assert error.exception.filename == f"/nowhere/{UNDECODED}"
    assert ascii(UNDECODED)[1:-1] in error.failures[0].message
    assert len(looks.around.call("HOME").get()) == 4


def test_an_actor_that_dies_of_such_an_exception_tells_its_owner(
    spawn_procs: Spawn, faults: Faults
) -> None:
    failing = spawn_procs().spawn("failing", Failing)
    failing.raise_value_error.broadcast(UNDECODED)
    failure = faults.take()
    assert failure.failures[0].message == UNDECODED
    with pytest.raises(SupervisionError, match=UNDECODED):
        failing.fine.call_one().get()


def test_meshes_actors_and_endpoints_may_have_such_names(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 2}, name=UNDECODED)
    echo = procs.spawn(UNDECODED, Echo)
    assert procs.name == UNDECODED
    assert echo.all.call(**{UNDECODED: 1}).get().values() == [((), {UNDECODED: 1})] * 2


@pytest.mark.parametrize("executed", [False, True], ids=["forked", "executed"])
def test_procs_are_where_the_program_is_even_if_that_is_not_utf_8(
    spawn_procs: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executed: bool
) -> None:
    folder = tmp_path / UNDECODED
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    env = {"SPELT": UNDECODED, **({"PYTHONHASHSEED": "1"} if executed else {})}
    looks = spawn_procs({"gpus": 2}, env=env).spawn("looks", Looks)
    assert looks.around.call("SPELT").get().values() == [(str(folder), UNDECODED, True)] * 2


def test_a_proc_that_cannot_start_says_so_in_such_text(
    spawn_procs: Spawn, faults: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises_awkwardly.py").write_text(f"raise OSError({UNDECODED!a})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SupervisionError, match=UNDECODED):
        spawn_procs({"gpus": 1}, preload=["raises_awkwardly"]).initialized.get(timeout=60)


# --- longer than a message ------------------------------------------------------------------------


def test_the_text_of_an_exception_may_be_longer_than_a_message(four: ProcMesh) -> None:
    failing = four.slice(gpus=0).spawn("failing", Failing)
    text = "begin " + "x" * (20 * MEBI) + " end"
    error = failing.raise_value_error.call_one(text).exception()
    assert isinstance(error, ActorError)
    assert error.exception is not None
    assert error.exception.args == (text,)
    (failure,) = error.failures
    assert failure.message.startswith("begin xxx")
    assert failure.message.endswith("xxx end")
    assert "... 20,447,242 characters are left out ..." in failure.message
    assert failing.fine.call_one().get() == "fine"


def test_an_actor_that_dies_of_one_ends_no_other(spawn_procs: Spawn, faults: Faults) -> None:
    proc = spawn_procs()
    teller = proc.spawn("teller", Teller)
    pid = teller.pid.call_one().get()
    wordy = proc.spawn("wordy", Wordy, 20 * MEBI)
    with pytest.raises(SupervisionError, match="characters are left out"):
        wordy.nothing.call_one().get()
    failing = proc.spawn("failing", Failing)
    failing.raise_value_error.broadcast("x" * (20 * MEBI))
    assert "characters are left out" in faults.take().failures[0].message
    assert teller.pid.call_one().get() == pid


def test_a_recursion_may_be_deeper_than_a_message_is_long(four: ProcMesh) -> None:
    deep = four.slice(gpus=0).spawn("deep", Deep)
    error = deep.down.call_one(20_000).exception()
    assert isinstance(error, ActorError)
    frames = error.failures[0].frames
    assert frames[-1].line == 'raise ValueError("the bottom")'
    assert frames[0].name != frames[-1].name
    assert len(frames) == 2000


class Deep(Actor):
    """Raises far below its endpoint."""

    @endpoint
    def down(self, depth: int) -> None:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(depth + 1000)
        try:
            self.deeper(depth)
        finally:
            sys.setrecursionlimit(before)

    def deeper(self, depth: int) -> None:
        if depth == 0:
            raise ValueError("the bottom")
        self.deeper(depth - 1)
