"""Procs are forked with the libraries that the client has imported, where that changes nothing."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from monarch._src.mesh import client_imports
from monarch._src.mesh.client import current_session
from monarch._src.net.observer import ask_agents
from monarch._src.observe.doctor import doctor
from monarch._src.wire.messages import Snapshotted
from monarch.actor import (
    Actor,
    ProcMesh,
    RestartedError,
    attach_to_workers,
    endpoint,
    shutdown_context,
    this_host,
)
from monarch.config import configured
from monarch.session import attach
from tests.conftest import Faults
from tests.leaks import PATIENCE_S
from tests.workers import TRUST_ALL, workers

Spawn = Callable[..., ProcMesh]
LONG_S = 10 * PATIENCE_S


class Importer(Actor):
    @endpoint
    def imported_in(self, name: str) -> tuple[int, int]:
        """The process that has imported the module, and this one."""
        return import_module(name).IMPORTED_IN, os.getpid()

    @endpoint
    def value(self, name: str, attribute: str) -> Any:
        return getattr(import_module(name), attribute)

    @endpoint
    def run(self, function: Callable[[], Any]) -> Any:
        return function()


class Libraries:
    """Makes libraries: packages that are slow to import, as far as the runtime knows."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        self._made: list[str] = []
        patch.syspath_prepend(folder)

    def make(self, name: str, source: str = "", folder: Path | None = None) -> None:
        """A package, whose source is run by all processes but the tests'."""
        package = (folder or self._folder) / name
        package.mkdir(parents=True)
        lines = "\n".join(f"    {line}" for line in (source or "pass").splitlines())
        (package / "__init__.py").write_text(
            f"import os\nIMPORTED_IN = os.getpid()\nif os.getpid() != {os.getpid()}:\n{lines}\n"
        )

    def take(self, *names: str, needed: bool = True) -> None:
        """Import them here, as a client does; `needed`: the program names them."""
        self._made += names
        self._patch.setattr(client_imports, "LIBRARIES", frozenset(self._made))
        for name in names:
            found = import_module(name)
            if needed:
                self._patch.setitem(globals(), f"named_{name}", found)

    def leave(self, *names: str) -> None:
        """Do not import them here, though they are installed."""
        self._made += names
        self._patch.setattr(client_imports, "LIBRARIES", frozenset(self._made))

    def forget(self) -> None:
        for name in self._made:
            sys.modules.pop(name, None)


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Libraries]:
    """In a session of its own, since what was imported or given up stays until its end."""
    shutdown_context()
    monkeypatch.setattr(client_imports, "_noted", {})
    made = Libraries(tmp_path / "made", monkeypatch)
    yield made
    shutdown_context()
    made.forget()


def importers(procs: ProcMesh) -> Importer:
    return procs.spawn("importers", Importer)


def places(procs: ProcMesh, name: str) -> set[str]:
    """Where ranks have the module from: of a rank's `own` import, or by a `fork`."""
    return places_of(importers(procs), name)


def places_of(actors: Importer, name: str) -> set[str]:
    asked = actors.imported_in.call(name).get(timeout=LONG_S).values()
    return {"own" if imported == own else "fork" for imported, own in asked}


def agent_answer() -> Snapshotted:
    session = current_session()
    assert session is not None
    (answer,) = ask_agents([session.directory], LONG_S)
    assert isinstance(answer, Snapshotted)
    return answer


# --- shared modules -------------------------------------------------------------------------------


def test_ranks_are_forked_with_what_the_program_names(
    spawn_procs: Spawn, libraries: Libraries
) -> None:
    libraries.make("large")
    libraries.take("large")
    first = importers(spawn_procs({"gpus": 3}))
    found = first.imported_in.call("large").get(timeout=LONG_S).values()
    assert len({imported for imported, _ in found}) == 1
    assert len({own for _, own in found}) == 3
    assert places(spawn_procs({"gpus": 2}), "large") == {"fork"}


class ImportsLarge(Actor):
    """Imports a library in a method, and its client does not."""

    @endpoint
    def pid_of_import(self) -> int:
        import large  # type: ignore[import-not-found]

        return large.IMPORTED_IN  # type: ignore[no-any-return]


def test_what_an_actor_class_imports_is_there_for_the_next_mesh(
    spawn_procs: Spawn, libraries: Libraries
) -> None:
    libraries.make("large")
    libraries.leave("large")
    first = spawn_procs({"gpus": 2})
    first.spawn("imports", ImportsLarge).pid_of_import.call().get(timeout=LONG_S)
    assert places(first, "large") == {"own"}
    assert "large" not in sys.modules
    assert places(spawn_procs({"gpus": 2}), "large") == {"fork"}


def test_what_a_mapped_function_imports_is_there_for_the_next_mesh(
    spawn_procs: Spawn, libraries: Libraries
) -> None:
    libraries.make("large")
    libraries.leave("large")

    def fit(item: int) -> int:
        import large  # pyright: ignore[reportMissingImports]

        return item if large else 0

    assert spawn_procs({"gpus": 2}).map(fit, [1, 2]) == [1, 2]
    assert places(spawn_procs({"gpus": 2}), "large") == {"fork"}


def test_a_library_that_the_client_imports_later_is_followed(
    spawn_procs: Spawn, libraries: Libraries
) -> None:
    early = spawn_procs({"gpus": 1})
    for name in ("one", "two"):
        libraries.make(name)
        libraries.take(name)
        assert places(spawn_procs({"gpus": 2}), name) == {"fork"}
    assert places(spawn_procs({"gpus": 2}), "one") == {"fork"}
    assert places(early, "one") == {"own"}  # ranks that are there are not touched


def test_subpackages_that_the_client_has_imported_come_too(
    spawn_procs: Spawn, libraries: Libraries, tmp_path: Path
) -> None:
    libraries.make("large")
    libraries.make("part", folder=tmp_path / "made" / "large")
    libraries.take("large", "large.part")
    assert places(spawn_procs({"gpus": 2}), "large.part") == {"fork"}


def test_a_mesh_does_not_wait_for_what_only_a_library_has_imported(
    spawn_procs: Spawn, libraries: Libraries
) -> None:
    libraries.make("large", "import threading; threading.Event().wait()")
    libraries.take("large", needed=False)
    procs = spawn_procs({"gpus": 2})
    assert importers(procs).run.call(os.getppid).get(timeout=LONG_S)


@pytest.mark.parametrize("preload", [(), ["xml"]])
def test_a_list_of_modules_takes_their_place(
    spawn_procs: Spawn, libraries: Libraries, preload: list[str]
) -> None:
    libraries.make("large")
    libraries.take("large")
    assert places(spawn_procs({"gpus": 2}, preload=preload), "large") == {"own"}
    with configured(preload=preload):
        assert places(spawn_procs({"gpus": 2}), "large") == {"own"}
        assert places(spawn_procs({"gpus": 2}, preload="auto"), "large") == {"fork"}


def test_a_rank_that_is_restarted_has_the_library_again(
    spawn_procs: Spawn, libraries: Libraries
) -> None:
    libraries.make("large")
    libraries.take("large")
    procs = spawn_procs({"gpus": 2}, restart="on-failure")
    actors = importers(procs)
    before = actors.imported_in.call("large").get(timeout=LONG_S).values()
    os.kill(before[0][1], signal.SIGKILL)
    with pytest.raises(RestartedError):
        actors.imported_in.call("large").get(timeout=LONG_S)
    after = actors.imported_in.call("large").get(timeout=LONG_S).values()
    assert after[0][1] != before[0][1]
    assert [imported for imported, _ in after] == [imported for imported, _ in before]


def test_actors_spawn_meshes_with_what_their_process_has_imported(
    spawn_procs: Spawn, libraries: Libraries
) -> None:
    libraries.make("large")
    libraries.take("large")
    procs = spawn_procs({"gpus": 1})
    assert places(procs, "large") == {"fork"}

    def inner() -> int:
        inner_procs = this_host().spawn_procs({"gpus": 1})
        asked = inner_procs.spawn("inner", Importer).run.call(os.getpid)
        return len(asked.get(timeout=LONG_S).values())

    assert importers(procs).run.call(inner).get(timeout=LONG_S).values() == [1]


def test_ranks_on_workers_are_forked_with_what_the_client_has_imported(
    libraries: Libraries, agent_errors: object
) -> None:
    libraries.make("large")
    libraries.take("large")
    with workers(2) as found:
        hosts = attach_to_workers(ca=TRUST_ALL, workers=[one.address for one in found])
        procs = hosts.spawn_procs({"gpus": 2})
        asked = importers(procs).imported_in.call("large").get(timeout=LONG_S).values()
        assert all(imported != own for imported, own in asked)
        assert len({imported for imported, _ in asked}) == 2  # once on each host
        shutdown_context(reason="the workers are about to end")


def test_a_client_that_takes_up_a_kept_session_has_the_library_there(
    libraries: Libraries, tmp_path: Path
) -> None:
    libraries.make("large")
    libraries.take("large")
    name = f"imports-{os.getpid()}"
    program = (
        "import large; from monarch._src.mesh import client_imports as of_client\n"
        "of_client.LIBRARIES = frozenset(['large'])\n"
        "from monarch.actor import this_host; from monarch.session import keep\n"
        f"keep({name!r}); this_host().spawn_procs({{'gpus': 1}}, name='kept').initialized.get()\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=env, check=True, cwd=tmp_path)
    kept = attach(name)["kept"]
    new = this_host().spawn_procs({"gpus": 1}, name="new")
    assert places(kept, "large") == {"fork"}
    assert places(new, "large") == {"fork"}
    shutdown_context()


# --- modules that spoil a fork --------------------------------------------------------------------

SPOILERS = {
    "thread": (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "it starts a thread",
    ),
    "socket": ("import socket; kept = socket.socketpair()", "it leaves open: a socket, a socket"),
    "pipe": ("kept = os.pipe()", "it leaves open: pipe:"),
    "device": ("kept = os.open('/dev/ptmx', os.O_RDWR)", "it leaves open: /dev/"),
    "handler": (
        "import signal; signal.signal(signal.SIGUSR2, lambda *_: None)",
        "it changes how signals are handled",
    ),
    "ignored": (
        "import ctypes; ctypes.CDLL(None).signal(12, ctypes.c_void_p(1))",
        "it changes how signals are handled",
    ),
    "process": (
        "import subprocess; kept = subprocess.Popen(['sleep', '600'])",
        "it starts a process",
    ),
    "error": ("raise RuntimeError('no device')", "RuntimeError: no device"),
    "exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "crash": ("os.kill(os.getpid(), 9)", "the process that imported it has ended"),
}
NOT_IMPORTED = ("error", "exit", "crash")


def test_libraries_after_which_no_fork_is_safe_are_given_up(
    spawn_procs: Spawn, libraries: Libraries
) -> None:
    for kind, (source, _) in SPOILERS.items():
        libraries.make(f"spoils_by_{kind}", source)
    libraries.make("good")
    libraries.take(*(f"spoils_by_{kind}" for kind in SPOILERS), "good")
    actors = importers(spawn_procs({"gpus": 2}))
    assert places_of(actors, "good") == {"fork"}
    (finding,) = [one for one in doctor() if one.name == "shared imports"]
    assert finding.status == "missing"
    assert "spoils_by_thread: it starts a thread" in finding.detail
    found = agent_answer().given_up
    assert found.keys() == {f"spoils_by_{kind}" for kind in SPOILERS}
    for kind, (_, why) in SPOILERS.items():
        assert why in found[f"spoils_by_{kind}"]
        if kind not in NOT_IMPORTED:
            assert places_of(actors, f"spoils_by_{kind}") == {"own"}


def test_an_import_that_hangs_costs_no_mesh(spawn_procs: Spawn, libraries: Libraries) -> None:
    libraries.make("hangs", "import threading; threading.Event().wait()")
    libraries.take("hangs")
    with configured(startup_timeout="20s"):
        procs = spawn_procs({"gpus": 2})
    assert importers(procs).run.call(os.getpid).get(timeout=LONG_S)
    assert agent_answer().importing == "hangs"


def test_a_mesh_that_is_stopped_while_it_waits_ends_at_once(
    spawn_procs: Spawn, libraries: Libraries
) -> None:
    libraries.make("hangs", "import threading; threading.Event().wait()")
    libraries.take("hangs")
    spawn_procs({"gpus": 2}).stop().get(timeout=LONG_S)
    assert agent_answer().importing == "hangs"  # the mesh has not waited for its end


# --- state of each process ------------------------------------------------------------------------


def test_variables_that_a_library_reads_have_the_values_of_the_mesh(
    spawn_procs: Spawn, libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries.make("large", "SEEN = os.environ.get('READ_BY_LARGE')")
    libraries.take("large")

    def seen(**options: Any) -> tuple[set[str | None], set[str]]:
        procs = spawn_procs({"gpus": 2}, **options)
        values = importers(procs).value.call("large", "SEEN").get(timeout=LONG_S).values()
        return set(values), places(procs, "large")

    assert seen() == ({None}, {"fork"})
    assert seen(env={"READ_BY_LARGE": "1"}) == ({"1"}, {"own"})
    by_rank = seen(env=lambda point: {"READ_BY_LARGE": str(point.rank)})
    assert by_rank == ({"0", "1"}, {"own"})
    assert seen(env={"READ_BY_NONE": "1"}) == ({None}, {"fork"})
    monkeypatch.setenv("READ_BY_LARGE", "2")  # the client's own environment
    assert seen() == ({"2"}, {"fork"})
    monkeypatch.delenv("READ_BY_LARGE")
    assert seen() == ({None}, {"fork"})


def test_a_library_is_the_one_that_the_rank_would_find(
    spawn_procs: Spawn, libraries: Libraries, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    libraries.make("large", "WHICH = 'installed'")
    libraries.make("large", "WHICH = 'checkout'", folder=tmp_path / "checkout")
    libraries.take("large")

    def which() -> set[str]:
        procs = spawn_procs({"gpus": 2})
        return set(importers(procs).value.call("large", "WHICH").get(timeout=LONG_S).values())

    assert which() == {"installed"}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(tmp_path / "checkout")])
        assert which() == {"installed"}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(tmp_path / "checkout"), *sys.path])
        assert which() == {"checkout"}


def test_a_process_that_is_executed_or_bound_imports_for_itself(
    spawn_procs: Spawn, libraries: Libraries
) -> None:
    libraries.make("large")
    libraries.take("large")
    procs = this_host().with_python_executable(sys.executable).spawn_procs({"gpus": 1})
    assert places(procs, "large") <= {"own", "fork"}
    procs.stop().get(timeout=LONG_S)
    assert places(spawn_procs({"gpus": 1}, env={"PYTHONHASHSEED": "1"}), "large") == {"own"}
    cpu = str(min(os.sched_getaffinity(0)))
    assert places(spawn_procs({"gpus": 1}, proc_bind=[{"cpus": cpu}]), "large") == {"own"}


def test_random_states_and_multiprocessing_are_each_ranks_own(
    spawn_procs: Spawn, libraries: Libraries
) -> None:
    libraries.make("large", "import multiprocessing, random")
    libraries.take("large")
    actors = importers(spawn_procs({"gpus": 3}))

    def drawn() -> tuple[float, bytes, str]:
        import multiprocessing.process

        key = bytes(multiprocessing.current_process().authkey)
        return random.random(), key, multiprocessing.process.ORIGINAL_DIR  # type: ignore[attr-defined]

    found = actors.run.call(drawn).get(timeout=LONG_S).values()
    assert len({number for number, _, _ in found}) == 3
    assert len({key for _, key, _ in found}) == 3
    assert {folder for _, _, folder in found} == {os.getcwd()}


# --- the end --------------------------------------------------------------------------------------


def test_no_zygote_outlives_the_agent(
    spawn_procs: Spawn, libraries: Libraries, faults: Faults
) -> None:
    libraries.make("large")
    libraries.take("large")
    actors = importers(spawn_procs({"gpus": 2}))
    parents = actors.run.call(os.getppid).get(timeout=LONG_S).values()
    session = current_session()
    assert session is not None
    os.kill(session.agent.pid, signal.SIGKILL)
    watched = os.pidfd_open(parents[0])
    try:
        assert select.select([watched], [], [], LONG_S)[0]
    finally:
        os.close(watched)
