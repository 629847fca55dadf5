"""`monarch debug --dap --port`: a whole conversation with an editor, and every way that it ends."""

from __future__ import annotations

import inspect
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from monarch._src.wire.dap_codec import Unpacker, packed
from monarch.actor import ProcMesh
from monarch.debug import waiting
from monarch.observe import kill_procs
from tests.conftest import Faults
from tests.integration import debugging as actors
from tests.integration.dap_client import DapClient, Message
from tests.integration.debugging import Stepper
from tests.integration.programs import PATIENCE_S, running

FILE = inspect.getsourcefile(actors) or ""
STEP = 1 + inspect.getsource(actors).splitlines().index("        doubled = value * 2")
SAID = re.compile(r"waiting for an editor on port (\d+)\n")


@pytest.fixture
def workers(spawn_procs: Callable[..., ProcMesh]) -> ProcMesh:
    return spawn_procs({"gpus": 2}, name="workers")


@pytest.fixture
def steppers(workers: ProcMesh) -> Stepper:
    found = workers.spawn("steppers", Stepper)
    found.initialized.get(timeout=PATIENCE_S)
    return found


@contextmanager
def served(base: Path, which: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The adapter of these ranks, and the port that it waits on."""
    words = ["debug", "--in", str(base), "--dap", which, "--port", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "monarch", *words], stderr=subprocess.PIPE, text=True
    ) as adapter:
        try:
            assert adapter.stderr is not None
            found = SAID.match(adapter.stderr.readline())
            assert found is not None
            yield adapter, int(found[1])
        finally:
            adapter.kill()


@contextmanager
def connected(port: int) -> Iterator[DapClient]:
    """An editor on that port."""
    came: queue.SimpleQueue[Message] = queue.SimpleQueue()
    with socket.create_connection(("127.0.0.1", port)) as editor:

        def read() -> None:
            unpacker = Unpacker()
            while data := editor.recv(1 << 16):
                for message in unpacker.feed(data):
                    came.put(message)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield DapClient(lambda message: editor.sendall(packed(message)), came)
        finally:
            editor.shutdown(socket.SHUT_WR)  # what is said until the adapter has heard is read
            reader.join()


def listens(pid: int) -> list[tuple[str, int]]:
    """The addresses at which a process takes connections."""
    found = psutil.Process(pid).net_connections("inet")
    return [
        (str(one.laddr[0]), int(one.laddr[1])) for one in found if one.status == psutil.CONN_LISTEN
    ]


def test_an_editor_on_a_port_attaches_stops_looks_goes_on_and_leaves(
    steppers: Stepper, own_base_directory: Path
) -> None:
    with served(own_base_directory, "workers[gpus=0:2]") as (adapter, port):
        assert listens(adapter.pid) == [("127.0.0.1", port)]
        with connected(port) as client:
            client.begin()
            assert listens(adapter.pid) == []
            with pytest.raises(ConnectionRefusedError):  # the first one has it
                socket.create_connection(("127.0.0.1", port))
            (found,) = client.set_breakpoints(FILE, STEP)
            assert found["verified"]
            answer = steppers.step.call(5, ())
            threads = {client.event("stopped")["threadId"] for _ in range(2)}
            names = {one["id"]: one["name"] for one in client.do("threads")["threads"]}
            assert sorted(names[one] for one in threads) == ["workers[gpus=0]", "workers[gpus=1]"]
            first, second = sorted(threads, key=names.__getitem__)
            (frame,) = client.stack(first)
            assert (frame["name"], frame["line"], frame["source"]["path"]) == ("step", STEP, FILE)
            assert client.variables(frame["id"])["value"] == "5"
            client.do("setExpression", expression="value", value="7", frameId=frame["id"])
            client.do("continue", threadId=first)
            while [one.rank for one in waiting()] != [1]:
                pass
            assert client.stack(second)  # it stands where it stood
            client.do("disconnect")
        assert answer.get(timeout=PATIENCE_S).values() == [114, 110]
        assert adapter.wait(PATIENCE_S) == 0
    assert not waiting()


def test_the_death_of_its_ranks_is_told_to_an_editor_and_ends_its_adapter(
    workers: ProcMesh, steppers: Stepper, own_base_directory: Path, faults: Faults
) -> None:
    with (
        served(own_base_directory, "workers[gpus=1]") as (adapter, port),
        connected(port) as client,
    ):
        client.begin()
        client.set_breakpoints(FILE, STEP)
        steppers.slice(gpus=1).step.call(5, ())
        thread = client.event("stopped")["threadId"]
        kill_procs(workers, [1])
        while client.event("thread") != {"reason": "exited", "threadId": thread}:
            pass  # others began
        client.event("terminated")
        assert adapter.wait(PATIENCE_S) == 0
    faults.take()


PROGRAM = """
from monarch.actor import this_host
from tests.integration.debugging import Stepper

steppers = this_host().spawn_procs({"gpus": 1}, name="workers").spawn("steppers", Stepper)
steppers.initialized.get()
answer = steppers.step.call(5)
print("begun", flush=True)
input()
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="mt-", dir="/tmp") as found:  # names of sockets have to be short
        yield Path(found)


@pytest.mark.parametrize("connects", [True, False], ids=["connected", "nobody has come"])
def test_an_adapter_ends_with_the_session_whose_client_is_killed(
    tmp_path: Path, connects: bool, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_folder))  # a session that is the only one
    with running(tmp_path, PROGRAM) as program:
        assert program.line() == "begun"
        with served(short_folder, "workers") as (adapter, port):
            if connects:
                with connected(port) as client:
                    client.begin()
                    client.event("stopped")
                    program.signal(signal.SIGKILL)
                    client.event("terminated")
                    assert adapter.wait(PATIENCE_S) == 0
            else:
                program.signal(signal.SIGKILL)
                assert adapter.wait(PATIENCE_S) == 1
                assert adapter.stderr is not None
                assert "ended before an editor connected" in adapter.stderr.read()
