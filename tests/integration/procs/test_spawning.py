"""What spawn_procs and spawn make: dims, names, processes and their world."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from monarch._src.system.process import CHILD_VARIABLE
from monarch.actor import (
    Actor,
    ActorMesh,
    Extent,
    ProcMesh,
    default_bootstrap_cmd,
    endpoint,
    this_host,
)
from monarch.config import configured
from tests.integration.sample_actors import Counter, Echo, Teller

Spawn = Callable[..., ProcMesh]


def test_procs_have_the_dims_they_were_asked_for(grid: ProcMesh) -> None:
    assert grid.sizes == {"hosts": 2, "gpus": 3}
    assert grid.extent == Extent(["hosts", "gpus"], [2, 3])
    assert len(grid) == 6
    assert grid.size() == 6
    assert grid.size("gpus") == 3
    assert grid.name == "grid"
    assert repr(grid).startswith("<ProcMesh 'grid'[hosts=2, gpus=3] on ")


def test_without_dims_there_is_one_proc(spawn_procs: Spawn) -> None:
    one = spawn_procs()
    assert one.sizes == {}
    assert len(one) == 1
    assert one.name == "procs"
    teller = one.spawn("teller", Teller)
    told = teller.places.call_one().get()
    assert told["actor_rank"] == {}
    assert told["message_rank_number"] == 0
    assert teller.places.call().get().item()["pid"] == told["pid"]


def test_this_host_has_no_dims_and_length_one() -> None:
    assert this_host().sizes == {}
    assert len(this_host()) == 1


def test_every_rank_is_a_process_of_its_own_in_a_session_of_its_own(four: ProcMesh) -> None:
    teller = four.spawn("teller", Teller)
    pids = teller.pid.call().get().values()
    assert len({*pids, os.getpid()}) == 5
    sessions = [w["session"] for w in teller.process_world.call().get().values()]
    assert sessions == pids


class Holder(Actor):
    """What this process has open."""

    @endpoint
    def open_pipes(self) -> dict[int, int]:
        """Descriptor -> inode, of pipes."""
        found: dict[int, int] = {}
        for name in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):  # that of the listing itself
                status = os.fstat(int(name))
                if stat.S_ISFIFO(status.st_mode):
                    found[int(name)] = status.st_ino
        return found


def test_procs_forked_together_have_none_of_each_others_outputs(spawn_procs: Spawn) -> None:
    # One that had would keep the output of another open after its end.
    mesh = spawn_procs({"gpus": 40})
    pipes = mesh.spawn("holder", Holder).open_pipes.call().get().values()
    outputs = [{of_rank[1], of_rank[2]} for of_rank in pipes]
    assert all(len(own) == 2 for own in outputs)
    for rank, of_rank in enumerate(pipes):
        assert all(own.isdisjoint(of_rank.values()) for r, own in enumerate(outputs) if r != rank)


@pytest.mark.parametrize(
    ("dims", "error", "said"),
    [
        ({"gpus": 0}, ValueError, "gpus=0: a mesh needs at least one process in each dim"),
        ({"gpus": -2}, ValueError, "gpus=-2"),
        ({"gpus": 2.0}, TypeError, "gpus=2.0: give a whole number"),
        ({"gpus": True}, TypeError, "gpus=True"),
        ({"two words": 2}, ValueError, "'two words' cannot name a dim"),
        ({"gpus": 1 << 20}, ValueError, "1048576 processes on one host"),
    ],
)
def test_dims_that_cannot_be_are_refused_with_the_remedy(
    dims: dict[str, int], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        this_host().spawn_procs(dims)


def test_an_actor_mesh_has_the_dims_of_its_procs_and_its_own_name(four: ProcMesh) -> None:
    counter = four.spawn("counter", Counter, 1)
    assert isinstance(counter, ActorMesh)
    assert counter.name == "counter"
    assert counter.sizes == {"gpus": 4}
    assert repr(counter) == "<ActorMesh 'counter': Counter[gpus=4] on 'workers'>"
    assert repr(counter.slice(gpus=1)) == "<ActorMesh 'counter': Counter on 'workers'>"


def test_arguments_of_spawn_reach_every_constructor(four: ProcMesh) -> None:
    counter = four.spawn("counter", Counter, 5, step=3)
    assert counter.add.call().get().values() == [8, 8, 8, 8]


def test_arguments_that_do_not_fit_the_constructor_are_refused_at_spawn(four: ProcMesh) -> None:
    with pytest.raises(TypeError, match=r"Counter\(start: .*missing|Counter.*unexpected.*pace"):
        four.spawn("counter", Counter, pace=3)
    with pytest.raises(TypeError, match=r"Counter.*too many positional"):
        four.spawn("counter", Counter, 1, 2, 3)


def test_initialized_is_done_when_every_proc_is_up(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 2})
    assert procs.initialized.get(timeout=60) is True
    teller = procs.spawn("teller", Teller)
    assert teller.initialized.get(timeout=60) is None


def test_calls_may_be_made_before_any_process_exists(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"gpus": 2})
    counter = procs.spawn("counter", Counter)
    answers = [counter.add.call() for _ in range(5)]
    assert [answer.get().values() for answer in answers] == [[n, n] for n in range(1, 6)]


def test_a_second_mesh_is_another_set_of_processes(spawn_procs: Spawn) -> None:
    meshes = [spawn_procs({"gpus": 2}, name=f"mesh{i}") for i in range(3)]
    tellers = [mesh.spawn("teller", Teller) for mesh in meshes]
    pids = [pid for teller in tellers for pid in teller.pid.call().get().values()]
    assert len(set(pids)) == 6
    assert len({mesh.uid for mesh in meshes}) == 3


def test_a_mesh_can_be_stopped_and_spawned_again_under_its_name(spawn_procs: Spawn) -> None:
    pids: set[int] = set()
    for _ in range(3):
        procs = spawn_procs({"gpus": 2}, name="again")
        pids.update(procs.spawn("teller", Teller).pid.call().get().values())
        procs.stop().get(timeout=60)
    assert len(pids) == 6


def test_sixty_four_procs_come_up_and_answer(spawn_procs: Spawn) -> None:
    procs = spawn_procs({"hosts": 8, "gpus": 8})
    echo = procs.spawn("echo", Echo)
    assert echo.rank.call().get().values() == list(range(64))
    assert echo.slice(hosts=3).rank.call().get().values() == list(range(8))
    assert sum(answer.get() for answer in echo.rank.stream()) == sum(range(64))


# --- the world of a proc --------------------------------------------------------------------------


def test_procs_work_where_the_client_works_and_import_what_it_imports(
    spawn_procs: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("ANSWER = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    procs = spawn_procs({"gpus": 2})
    teller = procs.spawn("teller", Teller)
    for world in teller.process_world.call().get().values():
        assert world["cwd"] == str(tmp_path)
        assert str(tmp_path) in world["path"]
        assert world["executable"] == sys.executable
    echo = procs.spawn("echo", Echo)
    found = echo.apply.call(getattr, only_here, "ANSWER").get().values()
    assert found == [only_here.ANSWER] * 2


def test_env_is_added_to_that_of_the_client(
    spawn_procs: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    procs = spawn_procs({"gpus": 2}, env={"MONARCH_TEST_COLOUR": "green"})
    for world in procs.spawn("teller", Teller).process_world.call().get().values():
        assert world["env"]["MONARCH_TEST_COLOUR"] == "green"
        assert world["env"]["PATH"] == os.environ["PATH"]


def test_env_of_one_mesh_is_not_seen_by_the_next(spawn_procs: Spawn) -> None:
    spawn_procs(env={"MONARCH_TEST_COLOUR": "green"}).initialized.get(timeout=60)
    teller = spawn_procs().spawn("teller", Teller)
    assert "MONARCH_TEST_COLOUR" not in teller.process_world.call_one().get()["env"]


def test_env_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="env 'N'=1: names and values are text"):
        this_host().spawn_procs({"gpus": 1}, env={"N": 1})  # type: ignore[dict-item]


def test_every_rank_draws_random_numbers_of_its_own(four: ProcMesh) -> None:
    drawn = four.spawn("teller", Teller).fresh_random.call().get().values()
    assert len({number for number, _ in drawn}) == 4
    assert len({data for _, data in drawn}) == 4


def test_what_is_preloaded_is_there_before_the_first_actor(spawn_procs: Spawn) -> None:
    bare = spawn_procs().spawn("teller", Teller).process_world.call_one().get()["modules"]
    assert "xml.dom.minidom" not in bare
    asked = spawn_procs(preload=["xml.dom.minidom"]).spawn("teller", Teller)
    assert "xml.dom.minidom" in asked.process_world.call_one().get()["modules"]
    with configured(preload=["wave"]):
        configured_so = spawn_procs().spawn("teller", Teller)
    assert "wave" in configured_so.process_world.call_one().get()["modules"]


def test_another_interpreter_is_executed_and_works_alike(
    spawn_procs: Spawn, tmp_path: Path
) -> None:
    python = tmp_path / "python-by-another-name"
    python.symlink_to(os.path.realpath(sys.executable))
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    host = this_host().with_python_executable(python_executable=str(python))
    procs = host.spawn_procs({"gpus": 2}, env={"PYTHONPATH": os.pathsep.join(packages)})
    teller = procs.spawn("teller", Teller)
    try:
        worlds = teller.process_world.call().get(timeout=60).values()
        assert [world["executable"] for world in worlds] == [str(python)] * 2
        echo = procs.spawn("echo", Echo)
        assert echo.apply.call(lambda x: x + 1, 1).get().values() == [2, 2]
        nested = procs.spawn("nested", Nested).slice(gpus=0)
        at = os.pathsep.join(packages), sys.executable
        own, below, equal = nested.executables.call_one(*at).get(timeout=120)
        assert below == [str(python), str(python), sys.executable]
        assert (own, equal) == (str(python), True)
    finally:
        procs.stop().get(timeout=60)


class Nested(Actor):
    """Spawns on its own host, whose interpreter it has inherited."""

    @endpoint
    def executables(self, path: str, clients: str) -> tuple[str, list[str], bool]:
        env = {"PYTHONPATH": path}
        host = this_host()
        command = replace(default_bootstrap_cmd(), program=clients)
        meshes = [
            host.spawn_procs(env=env),
            host.slice().spawn_procs(env=env),
            host.spawn_procs(env=env, bootstrap_command=command),  # which comes first
        ]
        tellers = [mesh.spawn("teller", Teller) for mesh in meshes]
        worlds = [teller.process_world.call_one().get(timeout=60) for teller in tellers]
        variable = "MONARCH_PYTHON_EXECUTABLE" in os.environ
        equal = host == this_host() and not variable
        return sys.executable, [world["executable"] for world in worlds], equal


LOADED = """
import importlib, json, sys
from monarch._src.programs import agent
for name in (*agent.BEFORE_FORK, agent.PROC_ENTRY.partition(":")[0]):
    importlib.import_module(name)
before = set(sys.modules)

from monarch.actor import Actor, endpoint, this_host

class Sample(Actor):
    @endpoint
    def loaded(self):
        import sys
        return sorted(sys.modules)

procs = this_host().spawn_procs()
print(json.dumps(sorted(set(procs.spawn("sample", Sample).loaded.call_one().get()) - before)))
procs.stop().get()
"""


def test_a_proc_loads_nothing_between_its_fork_and_its_first_answer(
    run_python: Callable[..., str],
) -> None:
    assert json.loads(run_python(LOADED)) == []


# In an agent and its zygote, though not in their client, a module that procs need is broken.
BROKEN = """
import os, sys
if {variable!r} in os.environ:
    raise ImportError("it was installed by halves")
sys.path.remove({folder!r})
del sys.modules["cloudpickle"]
import cloudpickle
"""
SPAWNS = """
import monarch.actor
from monarch.actor import Actor, endpoint, shutdown_context, this_host

class Sample(Actor):
    @endpoint
    def one(self):
        return 1

monarch.actor.unhandled_fault_hook = lambda fault: None
try:
    print(this_host().spawn_procs().spawn("sample", Sample).one.call_one().get(timeout=30))
except Exception as error:
    print(type(error).__name__, error)
shutdown_context()
"""


def test_if_what_procs_need_cannot_be_loaded_the_caller_hears_why(
    run_python: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "cloudpickle.py"
    broken.write_text(BROKEN.format(variable=CHILD_VARIABLE, folder=str(tmp_path)))
    monkeypatch.syspath_prepend(str(tmp_path))
    said = run_python(SPAWNS)
    assert said.startswith("SupervisionError")
    assert "cannot be loaded: ImportError: it was installed by halves" in said


LAST_WORD = """
import os, socket
from monarch._src.host.spawn_spec import DropMesh, decode_from_zygote, encode
from monarch._src.host.zygote import LARGEST, Zygote, seqpacket_pair

agent, zygote = seqpacket_pair()
agent.send(encode(DropMesh(1)))
pid = os.fork()
if not pid:
    agent.close()
    Zygote(zygote, -1, "no_such_module:prepare", []).run()
zygote.close()
said = decode_from_zygote(agent.recv(LARGEST))
agent.send(encode(DropMesh(2)))  # it is still there
agent.shutdown(socket.SHUT_WR)
assert agent.recv(LARGEST) == b"", "and has read all: else this is a reset, which may come first"
print(said.why, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_zygote_that_cannot_begin_is_heard_whatever_it_was_sent_meanwhile(
    run_python: Callable[..., str],
) -> None:
    assert run_python(LAST_WORD) == "ModuleNotFoundError: No module named 'no_such_module' 1\n"
