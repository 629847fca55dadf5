"""What every test stands on: nothing is left behind, no failure goes unseen."""

from __future__ import annotations

import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from hypothesis import HealthCheck, settings

import monarch.actor
from monarch._src.actor.deliver import routes
from monarch._src.mesh import client_imports
from monarch._src.mesh.client import current_session
from monarch._src.net.hosts import keys
from monarch._src.telemetry.sql.engine_process import end_idle_engines
from monarch.actor import MeshFailure, ProcMesh, shutdown_context, this_host
from monarch.observe import RankRestarting, on_change
from tests.leaks import PATIENCE_S, TOKEN_VARIABLE, Holdings, leaks
from tests.runtime_logs import RuntimeErrors, watched_agents

# A busy machine must not fail a property.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


# Programs that tests start are sent signals, and would inherit from a shell that has put pytest
# into the background that they are to ignore them.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


# --- nothing is left ------------------------------------------------------------------------------


class _Baseline:
    """What there was when the module began; what session fixtures make meanwhile is theirs."""

    def __init__(self) -> None:
        self.holdings = Holdings()
        self.of_session = Holdings()


_baseline = _Baseline()


@contextmanager
def adopted(*, for_good: bool) -> Generator[None]:
    """Count what the block makes as what there was before. `for_good`: until the run ends."""
    before = Holdings.now()
    yield
    after = Holdings.now()
    _baseline.holdings = _baseline.holdings.with_gains(before, after)
    if for_good:
        _baseline.of_session = _baseline.of_session.with_gains(before, after)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    """What a session fixture makes belongs to the session, not to the module that came first."""
    if fixturedef.scope not in ("session", "package"):
        return (yield)
    with adopted(for_good=False):
        return (yield)


@pytest.fixture(scope="session")
def own_base_directory() -> Iterator[Path]:
    """Session directories of this run go where no other program's are."""
    # In /tmp, whatever TMPDIR says: the names of sockets have to be short.
    with (
        tempfile.TemporaryDirectory(prefix="mt-", dir="/tmp") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_RUNTIME_DIR", folder)
        patch.setenv("XDG_STATE_HOME", folder)
        patch.setenv(TOKEN_VARIABLE, secrets.token_hex(8))
        yield Path(folder)


@pytest.fixture(scope="session", autouse=True)
def meshes_wait_for_no_library() -> Iterator[None]:
    """The test program has imported every library; meshes of a test need few of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_imports, "LIBRARIES", frozenset[str]())
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_by_the_run(own_base_directory: Path) -> Iterator[None]:
    """The first fixture of all, and so the last to end."""
    # What frees large messages when they have left is one a process, made by the first of them.
    zmq.Frame(bytes(1 << 17), copy=False)
    _baseline.of_session = Holdings.now()
    yield
    _fail_if_left("the test run", _baseline.of_session)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_by_a_module(
    request: pytest.FixtureRequest, nothing_is_left_by_the_run: None
) -> Iterator[None]:
    """The first fixture of a module, and so the last to end."""
    jupyter = sys.modules.get("jupyter_core.utils")
    if jupyter is not None:  # its blocking client makes one event loop and keeps it
        with adopted(for_good=True):
            jupyter.ensure_event_loop()
    _baseline.holdings = Holdings.now()
    yield
    _fail_if_left(request.node.nodeid, _baseline.holdings)


def _fail_if_left(who: str, before: Holdings) -> None:
    shutdown_context(reason="the tests of this module have ended")
    end_idle_engines()
    found = leaks(before)
    if found:
        lines = "\n".join(f"  {line}" for line in found)
        pytest.fail(f"{who} left behind, {PATIENCE_S:.0f} s after its end:\n{lines}", pytrace=False)


# --- no failure goes unseen -----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def runtime_errors() -> Iterator[RuntimeErrors]:
    """Errors that the runtime here only logs. A test that provokes one takes it with `take`."""
    with RuntimeErrors() as errors:
        yield errors
    untaken = errors.take()
    if untaken:
        pytest.fail("the runtime logged errors:\n" + "\n".join(untaken), pytrace=False)


@pytest.fixture(scope="module", autouse=True)
def agent_errors(
    nothing_is_left_by_a_module: None, own_base_directory: Path
) -> Iterator[Callable[[], list[str]]]:
    """Errors in the logs of host agents. A test that provokes one takes it by a call."""
    with watched_agents(own_base_directory) as taken:
        yield taken
        shutdown_context(reason="the tests of this module have ended")
        untaken = taken()
    if untaken:
        pytest.fail("a host agent logged errors:\n" + "\n".join(untaken), pytrace=False)


class Faults:
    """What `unhandled_fault_hook` was told, in order."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[MeshFailure] = queue.SimpleQueue()
        self.expected = False

    def __call__(self, failure: MeshFailure) -> None:
        self._told.put(failure)

    def take(self, timeout: float = PATIENCE_S) -> MeshFailure:
        """The next fault; waits for it."""
        return self._told.get(timeout=timeout)

    def take_ranks(self, ranks: set[int]) -> None:
        """Take faults until each of these ranks was in one."""
        missing = set(ranks)
        while missing:
            missing -= {failure.rank for failure in self.take().failures}

    def untaken(self) -> list[MeshFailure]:
        """What nobody took."""
        return [self._told.get() for _ in range(self._told.qsize())]


_between_tests = Faults()


@pytest.fixture(scope="session", autouse=True)
def no_fault_ends_pytest() -> Iterator[None]:
    """One that comes behind its test is of that test, and must not end pytest without a word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monarch.actor, "unhandled_fault_hook", _between_tests)
        yield


@pytest.fixture(autouse=True)
def recorded_faults(no_fault_ends_pytest: None) -> Iterator[Faults]:
    """Faults are recorded, since the hook of the runtime would end pytest. None is expected."""
    late, faults = _between_tests.untaken(), Faults()
    for fault in late:
        sys.stderr.write(f"told after the test that had caused it: {fault}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monarch.actor, "unhandled_fault_hook", faults)
        yield faults
        session = current_session()
        if faults.expected and session is not None:
            session.check()  # that an agent has ended is told now, and not in the next test
    untaken = faults.untaken()
    if untaken and not faults.expected:
        told = "\n".join(str(fault) for fault in untaken)
        pytest.fail(f"faults that nobody handled:\n{told}", pytrace=False)


@pytest.fixture
def faults(recorded_faults: Faults) -> Faults:
    """For tests that let something fail: the faults that reach the client."""
    recorded_faults.expected = True
    return recorded_faults


# --- meshes ---------------------------------------------------------------------------------------


@pytest.fixture
def spawn_procs() -> Iterator[Callable[..., ProcMesh]]:
    """`this_host().spawn_procs`; what it spawned is stopped after the test."""
    spawned: list[ProcMesh] = []

    def spawn(*args: Any, **options: Any) -> ProcMesh:
        spawned.append(this_host().spawn_procs(*args, **options))
        return spawned[-1]

    yield spawn
    stops = [mesh.stop("the test has ended") for mesh in spawned]
    for stop in stops:
        stop.get(timeout=PATIENCE_S)


@pytest.fixture
def job(tmp_path: Path) -> str:
    """The directory of new keys of a job."""
    keys.make(tmp_path / "job")
    return str(tmp_path / "job")


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process calls on eight ranks goes by way of their host, as on 32 elsewhere."""
    monkeypatch.setattr(routes, "CAST_FROM", 8)


@pytest.fixture
def procs(spawn_procs: Callable[..., ProcMesh]) -> ProcMesh:
    """Two procs, `gpus=0` and `gpus=1`."""
    return spawn_procs({"gpus": 2}, name="workers")


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Run a program in a fresh interpreter that finds what this one finds; its stdout."""
    return _run_python


def _run_python(program: str, *arguments: str, check: bool = True) -> str:
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def restarts() -> Iterator[queue.SimpleQueue[RankRestarting]]:
    """The restarts of which this process is told."""
    heard: queue.SimpleQueue[RankRestarting] = queue.SimpleQueue()

    def listen(change: object) -> None:
        if isinstance(change, RankRestarting):
            heard.put(change)

    end = on_change(listen)
    yield heard
    end()
