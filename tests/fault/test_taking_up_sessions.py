"""A client takes up a session that another one kept: all of it, and one client at a time."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from monarch.actor import shutdown_context, this_host
from monarch.observe import snapshot
from monarch.session import SessionError, attach, detach, keep, sessions
from tests.fault.keepers import ATTACHES, KEEPS, info, keeper, kept_name
from tests.integration.gates import GateKeeper
from tests.integration.programs import watched
from tests.integration.sample_actors import Counter, Recorder

pytestmark = pytest.mark.slow


@pytest.fixture
def name(own_base_directory: Path) -> Iterator[str]:
    """A name for a session; what is kept under it is ended after the test."""
    with kept_name(own_base_directory) as found:
        yield found


# --- taking it up ---------------------------------------------------------------------------------


def test_the_next_client_calls_slices_spawns_and_stops_as_the_first_could(
    name: str, tmp_path: Path
) -> None:
    with keeper(tmp_path, name) as first:
        first.do("part = procs.slice(gpus=1).spawn('part', Teller); part.pid.call().get()")
        first.do("gone = procs.spawn('gone', Echo); gone.stop().get()")
        first.do("detach()")
        session = attach(name)
        workers, mine = session["workers"], session["mine"]
        assert (workers.sizes, mine.sizes, session["part"].sizes) == ({"gpus": 2}, {"gpus": 2}, {})
        workers.initialized.get(timeout=60)
        assert "gone" not in session.actors
        assert mine.slice(gpus=1).add.call_one(5).get(timeout=60) == 6
        assert session["part"].pid.call_one().get(timeout=60) > 0
        recorder = workers.spawn("recorder", Recorder)
        for number in range(100):
            recorder.note.broadcast(number)
        assert recorder.take.call().get(timeout=60).values() == [list(range(100))] * 2
        more = this_host().spawn_procs({"gpus": 2}, name="more").spawn("counter", Counter)
        assert more.add.call(1).get(timeout=60).values() == [1, 1]
        mine.stop().get(timeout=60)
        pids = recorder.count.call().get(timeout=60).values()
        assert pids == [0, 0]
        workers.stop().get(timeout=60)
        with pytest.raises(RuntimeError, match="has been stopped"):
            mine.add.call(1)


def test_a_mesh_large_enough_to_be_cast_to_is_taken_up_twice(
    name: str, tmp_path: Path, few_are_many: None
) -> None:
    few = "    from monarch._src.actor.deliver import routes\n    routes.CAST_FROM = 8"
    setup = few + KEEPS.replace('{"gpus": 2}', '{"gpus": 8}')
    with keeper(tmp_path, name, setup) as first:
        first.do("print(mine.add.call(1).get().values() == [2] * 8)")
        first.program.signal(signal.SIGKILL)
        first.program.end()
    for total in (3, 4):
        session = attach(name)
        mine = session["mine"]
        mine.slice(gpus=7).add.call_one(0).get(timeout=60)
        assert mine.add.call(1).get(timeout=60).values() == [total] * 8
        detach()


def test_a_chain_of_clients_each_killed_loses_nothing(name: str, tmp_path: Path) -> None:
    with keeper(tmp_path / "0", name) as first:
        first.program.signal(signal.SIGKILL)
        first.program.end()
    for turn in range(1, 4):
        with keeper(tmp_path / str(turn), name, ATTACHES) as later:
            assert later.value("mine.add.call(1).get().values()") == str([turn + 1] * 2)
            later.program.signal(signal.SIGKILL)
            later.program.end()
    assert attach(name)["mine"].add.call(0).get(timeout=60).values() == [4, 4]


def test_a_session_is_found_by_the_name_of_a_mesh_or_as_the_only_free_one(
    name: str, tmp_path: Path
) -> None:
    mesh = name.replace("-", "_")
    with keeper(tmp_path, name, KEEPS.replace('"workers"', repr(mesh))) as first:
        first.do("detach()")
        assert attach(mesh).name == name
        with pytest.raises(SessionError, match="this process holds the session"):
            attach(mesh)


def test_meshes_of_our_own_are_in_the_way_of_taking_up_others(name: str, tmp_path: Path) -> None:
    with keeper(tmp_path, name) as first:
        first.do("detach()")
        mine = this_host().spawn_procs(name="ours")
        with pytest.raises(SessionError, match=r"has meshes of its own \(ours\)"):
            attach(name)
        assert mine.spawn("c", Counter).add.call_one().get(timeout=60) == 1


def test_what_is_not_there_is_told_with_what_is(name: str, tmp_path: Path) -> None:
    with (
        keeper(tmp_path, name),
        pytest.raises(SessionError, match=rf"no kept session 'nothing' on this machine; .*{name}"),
    ):
        attach("nothing")


def test_two_sessions_cannot_have_one_name(name: str, tmp_path: Path) -> None:
    with keeper(tmp_path, name) as first:
        this_host().spawn_procs().initialized.get(timeout=60)
        with pytest.raises(
            SessionError, match=rf"held by process .* `monarch kill {name}` ends it"
        ):
            keep(name)
        first.program.signal(signal.SIGKILL)
        first.program.end()
        with pytest.raises(SessionError, match="no client is attached to it"):
            keep(name)


@pytest.mark.parametrize("bad", ["", "a b", "-x", "a/b", "ä"])
def test_a_name_that_a_shell_would_misread_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="cannot name a session"):
        keep(bad)


def test_only_whole_meshes_of_this_client_are_kept(name: str) -> None:
    mesh = this_host().spawn_procs({"gpus": 2}, name="workers")
    with pytest.raises(ValueError, match="not a slice"):
        keep(name, [mesh.slice(gpus=0)])
    with pytest.raises(TypeError, match="keep takes proc meshes"):
        keep(name, [mesh.spawn("c", Counter)])  # type: ignore[list-item]
    mesh.stop().get(timeout=60)
    with pytest.raises(ValueError, match="has been stopped"):
        keep(name, [mesh])
    assert [one for one in sessions() if one.kept_as == name] == []


def test_a_mesh_is_kept_or_restarted_not_both(name: str) -> None:
    mesh = this_host().spawn_procs({"gpus": 1}, name="again", restart="on-failure")
    for meshes in ([mesh], None):
        with pytest.raises(ValueError, match=r"'again' has restart=.* either kept or restarted"):
            keep(name, meshes)
    mesh.stop().get(timeout=60)
    keep(name)
    with pytest.raises(ValueError, match="either kept or restarted"):
        this_host().spawn_procs(restart="on-failure")


def test_another_version_is_told_in_a_table_of_both_sides(
    name: str, tmp_path: Path, own_base_directory: Path
) -> None:
    with keeper(tmp_path, name) as first:
        first.do("detach()")
        record = info(own_base_directory, name).directory / "kept"
        said = json.loads(record.read_text())
        for key, other in (("python", "3.9.1"), ("monarch", "0.0.7"), ("protocol", "0")):
            changed = {**said, "versions": {**said["versions"], key: other}}
            record.write_text(json.dumps(changed))
            with pytest.raises(SessionError) as caught:
                attach(name)
            lines = str(caught.value).splitlines()
            assert "speaks another version" in lines[0]
            (differs,) = [line for line in lines if line.endswith("<-- differs")]
            assert differs.split()[0] == key
            assert differs.split()[2] == other
        record.write_text(json.dumps(said))
        assert attach(name).name == name


def test_a_class_that_cannot_be_had_here_is_told_and_the_rest_works(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "only_there.py").write_text(
        "from monarch.actor import Actor, endpoint\n"
        "class There(Actor):\n    @endpoint\n    def one(self):\n        return 1\n"
    )
    setup = KEEPS + "    import only_there\n    there = procs.spawn('there', only_there.There)\n"
    with keeper(tmp_path, name, setup) as first:
        first.do("detach()")
        session = attach(name)
        there = session["there"]
        assert repr(there) == "<ActorMesh 'there': There[gpus=2] on 'workers'>"
        with pytest.raises(AttributeError, match=r"There, the class of .*No module named"):
            _ = there.one
        assert session["mine"].add.call(1).get(timeout=60).values() == [2, 2]
        with pytest.raises(KeyError, match="has no mesh 'theirs'; it has workers, mine, there"):
            _ = session["theirs"]


# --- one at a time --------------------------------------------------------------------------------


def test_a_second_client_is_refused_with_who_holds_it(name: str, tmp_path: Path) -> None:
    with keeper(tmp_path, name) as first:
        with pytest.raises(SessionError) as caught:
            attach(name)
        text = str(caught.value)
        assert f"process {first.program.pid} (" in text
        assert f"on {os.uname().nodename} holds it; take=True" in text
        assert first.value("mine.add.call(1).get().values()") == "[2, 2]"


def test_a_client_that_is_ousted_is_told_by_whom_and_lives(name: str, tmp_path: Path) -> None:
    with keeper(tmp_path, name) as first:
        first.do("tied = this_host().spawn_procs({'gpus': 1}, name='tied').spawn('c', Teller)")
        pid = int(first.value("tied.pid.call_one().get()"))
        with watched([pid]) as processes:
            session = attach(name, take=True)
            processes.wait_all_ended()
        assert session["mine"].add.call(1).get(timeout=60).values() == [2, 2]
        for call in ("mine.add.call(1).get()", "mine.add.broadcast(1)", "procs.stop().get()"):
            (line,) = first.do(call)
            assert line.startswith("SupervisionError workers[gpus=0] is out of reach: process")
            assert f"process {os.getpid()} (" in line
            assert "has taken it over" in line
        assert first.value("told") == "[]"
        again = "this_host().spawn_procs().spawn('again', Teller).pid.call_one().get() > 0"
        assert first.value(again) == "True"
        assert session["mine"].add.call(0).get(timeout=60).values() == [2, 2]
        first.program.say("sys.exit(0)")
        assert first.program.end() == (0, "", "")
        assert session["mine"].add.call(0).get(timeout=60).values() == [2, 2]


def test_a_call_in_flight_of_an_ousted_client_ends(
    name: str, tmp_path: Path, gate: GateKeeper
) -> None:
    with keeper(tmp_path, name) as first:
        gates = f"Gate({gate.gate.entered!r}, {gate.gate.leave!r})"
        first.program.say(f"mine.add_at.call({gates}, 1).get()")
        gate.wait_entered(2)
        session = attach(name, take=True)
        (line,) = first.said()
        assert "is out of reach" in line
        gate.open(2)
        assert session["mine"].add.call(0).get(timeout=60).values() == [2, 2]


# --- observers meanwhile --------------------------------------------------------------------------


@contextmanager
def looked_at() -> Iterator[None]:
    """Another thread looks at all meshes without a pause, from before the block until after it."""
    looking, over = threading.Event(), threading.Event()

    def look() -> set[str]:
        names = set[str]()
        while not over.is_set():
            names.update(mesh.name for mesh in snapshot())
            looking.set()
        return names

    with ThreadPoolExecutor() as threads:
        names = threads.submit(look)
        try:
            while not looking.wait(1.0):
                assert not names.done(), names.result()
            yield
        finally:
            over.set()
        assert names.result() == {"workers"}


def test_who_looks_while_it_is_let_go_of_sees_meshes_or_nothing(name: str) -> None:
    this_host().spawn_procs(name="workers").initialized.get(timeout=60)
    keep(name)
    for _ in range(5):
        with looked_at():
            detach()
            assert snapshot() == []
        attach(name)


def test_who_looks_while_the_session_ends_sees_meshes_or_nothing(own_base_directory: Path) -> None:
    for _ in range(5):
        this_host().spawn_procs(name="workers").initialized.get(timeout=60)
        with looked_at():
            shutdown_context()
            assert snapshot() == []
