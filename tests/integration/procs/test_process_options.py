"""How processes are made: binding, commands, environment by rank."""

from __future__ import annotations

import inspect
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    BootstrapCommand,
    HostMesh,
    Point,
    SupervisionError,
    default_bootstrap_cmd,
    shutdown_context,
    this_host,
)
from monarch.observe import meshes, snapshot
from tests.integration.environments import KEY, Spawn, environments
from tests.integration.sample_actors import Echo, Teller

binds = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system binds no process to cpus"
)


def test_options_stand_in_the_documented_order() -> None:
    names = list(inspect.signature(HostMesh.spawn_procs).parameters)
    expected = ["self", "per_host", "bootstrap", "name", "proc_bind", "bootstrap_command"]
    assert names[:6] == expected


# --- binding --------------------------------------------------------------------------------------


@binds
def test_each_proc_runs_only_on_its_cpus(spawn_procs: Spawn) -> None:
    mine = sorted(os.sched_getaffinity(0))
    bind = [{"cpus": str(mine[0])}, {"cpus": str(mine[-1])}, {}]
    echo = spawn_procs({"gpus": 3}, proc_bind=bind).spawn("echo", Echo)
    found = echo.apply.call(os.sched_getaffinity, 0).get(timeout=60).values()
    assert found == [{mine[0]}, {mine[-1]}, set(mine)]


@binds
@pytest.mark.parametrize(
    ("bind", "said"),
    [
        ([{}], "proc_bind has 1 entries for 2 processes; give one for each"),
        ([{}, {"cpu": "0"}], "rank 1 has the key 'cpu'; there are cpus, cpunodebind, membind"),
        ([{}, {"cpus": "one"}], "rank 1: cpus: 'one' in 'one' is neither a number nor a range"),
        ([{"cpus": "60000"}, {}], "rank 0: cpus='60000': this host has no cpu 60000; it has 0"),
        ([{}, {"cpus": "0,60000-60001"}], "rank 1: .* has no cpu 60000-60001"),
        ([{}, {"physcpubind": "60000"}], "rank 1: physcpubind='60000': this host has no cpu 60000"),
        ([{}, {"physcpubind": ""}], "rank 1: physcpubind: '' in '' is neither"),
    ],
)
def test_a_binding_that_cannot_be_is_refused_with_rank_and_key(
    bind: list[dict[str, str]], said: str
) -> None:
    before = meshes()
    with pytest.raises(ValueError, match=said):
        this_host().spawn_procs({"gpus": 2}, proc_bind=bind)
    assert meshes() == before


@binds
def test_a_binding_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="rank 0: cpus=0; give text such as"):
        this_host().spawn_procs({"gpus": 1}, proc_bind=[{"cpus": 0}])  # type: ignore[dict-item]


@pytest.mark.parametrize("bind", [{"cpus": "0"}, "0", 1, ["0"], [None]])
def test_bindings_that_are_no_list_of_dicts_are_refused_with_an_example(bind: Any) -> None:
    said = r'give a list of a dict for each process, as \[{"cpus": "0-3"}\]'
    with pytest.raises(TypeError, match=said):
        this_host().spawn_procs({"gpus": 1}, proc_bind=bind)


@pytest.mark.parametrize("key", ["cpunodebind", "membind", "physcpubind"])
def test_without_numactl_what_needs_it_is_refused_with_the_remedy(
    key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = f"rank 1: '{key}' needs the program numactl, .* install it .* or bind by 'cpus'"
    with pytest.raises(ValueError, match=said):
        this_host().spawn_procs({"gpus": 2}, proc_bind=[{}, {key: "0"}])


def test_numactl_is_executed_in_front_with_what_it_understands(
    spawn_procs: Spawn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "numactl"
    program.write_text(
        textwrap.dedent(f"""\
            #!/bin/sh
            while [ "$1" != -- ]; do {KEY}="${KEY} $1"; shift; done
            shift
            export {KEY}
            exec "$@"
        """)
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    bind = [{"membind": "all", "cpunodebind": "+0"}, {"physcpubind": "0"}, {}]
    found = environments(spawn_procs({"gpus": 3}, proc_bind=bind))
    assert [env.get(KEY) for env in found] == [
        " --cpunodebind=+0 --membind=all",
        " --physcpubind=0",
        None,
    ]


@pytest.mark.skipif(shutil.which("numactl") is None, reason="numactl is not installed")
def test_the_real_numactl_binds(spawn_procs: Spawn) -> None:
    cpu = min(os.sched_getaffinity(0))
    bind = [{"physcpubind": str(cpu)}, {"cpunodebind": "all"}]
    echo = spawn_procs({"gpus": 2}, proc_bind=bind).spawn("echo", Echo)
    found = echo.apply.call(os.sched_getaffinity, 0).get(timeout=60).values()
    assert found[0] == {cpu}


# --- commands -------------------------------------------------------------------------------------


def wrapped(*words: str, **fields: Any) -> BootstrapCommand:
    """The default command behind other words."""
    default = default_bootstrap_cmd()
    return BootstrapCommand(words[0], None, [*words[1:], default.program, *default.args], **fields)


def test_a_command_is_executed_in_place_of_a_fork_and_works_alike(
    spawn_procs: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    procs = spawn_procs({"gpus": 2}, bootstrap_command=wrapped("env", f"{KEY}=by env"))
    worlds = procs.spawn("teller", Teller).process_world.call().get(timeout=60).values()
    for world in worlds:
        assert world["env"][KEY] == "by env"
        assert world["cwd"] == os.getcwd()
        assert world["executable"] == sys.executable
        assert {name for name in world["env"] if name.startswith("MONARCH_")} == {
            KEY, "MONARCH_CHILD", *(n for n in os.environ if n.startswith("MONARCH_")),
        }  # fmt: skip
    echo = procs.spawn("echo", Echo)
    assert echo.apply.call(lambda x: x + 1, 1).get(timeout=60).values() == [2, 2]


def test_each_rank_may_have_its_own_command(spawn_procs: Spawn) -> None:
    def command(point: Point) -> BootstrapCommand:
        return default_bootstrap_cmd().with_env({KEY: f"{point['hosts']}/{point['gpus']}"})

    procs = spawn_procs({"hosts": 2, "gpus": 2}, bootstrap_command=command)
    assert [env[KEY] for env in environments(procs)] == ["0/0", "0/1", "1/0", "1/1"]


def test_a_command_changes_what_is_inherited(spawn_procs: Spawn) -> None:
    assert "HOME" in os.environ
    command = default_bootstrap_cmd().with_env({"HOME": None, KEY: "command"})
    (env,) = environments(spawn_procs(bootstrap_command=command, env={KEY: "mesh", "OTHER": "1"}))
    assert "HOME" not in env
    assert (env[KEY], env["OTHER"], env["PATH"]) == ("command", "1", os.environ["PATH"])


def test_a_command_may_inherit_nothing(spawn_procs: Spawn) -> None:
    command = default_bootstrap_cmd()
    command.inherit_env = False
    (env,) = environments(spawn_procs(bootstrap_command=command, env={KEY: "mesh"}))
    assert env[KEY] == "mesh"
    assert not {"PATH", "HOME", "PYTHONPATH"} & set(env)


def test_a_command_may_be_told_another_name(spawn_procs: Spawn) -> None:
    command = default_bootstrap_cmd()
    command.arg0 = "worker"
    echo = spawn_procs(bootstrap_command=command).spawn("echo", Echo)
    assert echo.apply.call_one(getattr, sys, "orig_argv").get(timeout=60)[0] == "worker"


def test_a_program_may_stay_in_front_and_ends_with_the_mesh(
    spawn_procs: Spawn, tmp_path: Path
) -> None:
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text("import subprocess, sys\nsys.exit(subprocess.call(sys.argv[1:]))\n")
    procs = spawn_procs(
        {"gpus": 2}, bootstrap_command=wrapped(sys.executable, str(wrapper)), bootstrap=lambda: None
    )
    echo = procs.spawn("echo", Echo)
    parents = echo.apply.call(os.getppid).get(timeout=60).values()
    (seen,) = [mesh for mesh in snapshot() if mesh.uid == procs.uid]
    assert [row.pid for row in seen.rows] == parents
    procs.stop().get(timeout=60)
    for pid in parents:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_command_that_never_comes_to_us_is_told_with_what_it_said(
    spawn_procs: Spawn, faults: object
) -> None:
    command = BootstrapCommand("sh", args=["-c", "echo 'not today' >&2; exit 3"])
    procs = spawn_procs({"gpus": 1}, bootstrap_command=command, name="workers")
    with pytest.raises(SupervisionError, match="never started: exited with status 3") as caught:
        procs.spawn("teller", Teller).pid.call().get(timeout=60)
    assert "not today" in str(caught.value)


def test_a_directory_is_no_python_executable(faults: object, tmp_path: Path) -> None:
    procs = this_host().with_python_executable(tmp_path).spawn_procs()
    said = f"never started: {tmp_path} is not an executable file"
    with pytest.raises(SupervisionError, match=said) as caught:
        procs.spawn("teller", Teller).pid.call().get(timeout=60)
    assert "Traceback" not in str(caught.value)
    procs.stop().get(timeout=60)


def test_a_command_that_drops_the_environment_is_told_with_the_remedy(
    spawn_procs: Spawn, faults: object
) -> None:
    procs = spawn_procs({"gpus": 1}, bootstrap_command=wrapped("env", "-u", "MONARCH_BOOT"))
    with pytest.raises(SupervisionError, match="has to pass on the environment") as caught:
        procs.spawn("teller", Teller).pid.call().get(timeout=60)
    assert caught.value.failures[0].kind == "never started"


def test_what_cannot_be_a_command_is_refused_before_anything_starts(tmp_path: Path) -> None:
    before = meshes()
    host = this_host()
    with pytest.raises(ValueError, match=r"rank 0: 'no-such-program' is no program that can be"):
        host.spawn_procs({"gpus": 2}, bootstrap_command=BootstrapCommand("no-such-program"))
    with pytest.raises(TypeError, match="rank 1 is None, no BootstrapCommand"):
        host.spawn_procs(
            {"gpus": 2},
            bootstrap_command=lambda p: default_bootstrap_cmd() if p.rank == 0 else None,  # type: ignore[arg-type,return-value]
        )
    assert meshes() == before


def test_a_command_takes_the_place_of_the_interpreter_of_its_hosts() -> None:
    """As in Monarch; the interpreter is that of the command that runs where none is given."""
    host = this_host().with_python_executable("/no/such/python")
    procs = host.spawn_procs({"gpus": 2}, bootstrap_command=default_bootstrap_cmd())
    try:
        world = procs.spawn("teller", Teller).slice(gpus=1).process_world.call_one().get(timeout=60)
        assert world["executable"] == sys.executable
    finally:
        procs.stop().get(timeout=60)


def test_the_program_that_monarchs_guide_names_runs_a_proc(spawn_procs: Spawn) -> None:
    """A command of `monarch._src.actor.bootstrap_main`, with variables of its own."""
    guide = ["-m", "monarch._src.actor.bootstrap_main"]
    command = BootstrapCommand(sys.executable, None, guide, env={KEY: "of the guide"})
    procs = spawn_procs({"gpus": 2}, bootstrap_command=command)
    assert [env[KEY] for env in environments(procs)] == ["of the guide"] * 2
    echo = procs.spawn("echo", Echo)
    assert echo.apply.call(lambda x: x + 1, 1).get().values() == [2, 2]


def test_what_is_preloaded_is_there_in_a_proc_that_is_executed(spawn_procs: Spawn) -> None:
    procs = spawn_procs(bootstrap_command=default_bootstrap_cmd(), preload=["xml.dom.minidom"])
    world = procs.spawn("teller", Teller).process_world.call_one().get(timeout=60)
    assert "xml.dom.minidom" in world["modules"]


# --- environment by rank --------------------------------------------------------------------------


def test_env_may_be_a_function_of_the_point(spawn_procs: Spawn) -> None:
    def env(point: Point) -> dict[str, str]:
        return {KEY: f"{point.rank}: {dict(point)}"}

    found = environments(spawn_procs({"hosts": 2, "gpus": 2}, env=env))
    assert [e[KEY] for e in found] == [
        f"{rank}: { {'hosts': rank // 2, 'gpus': rank % 2} }" for rank in range(4)
    ]


def test_env_of_a_rank_that_is_no_mapping_of_text_is_refused_with_the_rank() -> None:
    before = meshes()
    with pytest.raises(TypeError, match="env of rank 1 'A'=1: names and values are text"):
        this_host().spawn_procs({"gpus": 2}, env=lambda p: {"A": p.rank or "0"})  # type: ignore[dict-item,return-value]
    with pytest.raises(TypeError, match="env of rank 0 is None: give a mapping"):
        this_host().spawn_procs({"gpus": 2}, env=lambda p: None)  # type: ignore[arg-type,return-value]
    assert meshes() == before


def test_what_python_reads_only_as_it_begins_works_too(spawn_procs: Spawn, tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("ANSWER = 42\n")
    env = {"PYTHONHASHSEED": "7", "PYTHONPATH": str(tmp_path)}
    echo = spawn_procs({"gpus": 2}, env=env).spawn("echo", Echo)
    expected = subprocess.run(
        [sys.executable, "-c", "print(hash('text'))"],
        env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert echo.apply.call(hash, "text").get(timeout=60).values() == [int(expected.stdout)] * 2
    found = echo.apply.call(lambda: __import__("only_there").ANSWER).get(timeout=60)
    assert found.values() == [42, 42]


# --- the environment of the client ----------------------------------------------------------------

LATER, GONE = "MONARCH_TEST_LATER", "MONARCH_TEST_GONE"


@pytest.mark.parametrize("command", [None, default_bootstrap_cmd()], ids=["forked", "executed"])
def test_what_the_client_has_set_or_removed_since_its_session_began_holds_for_a_new_mesh(
    spawn_procs: Spawn, monkeypatch: pytest.MonkeyPatch, command: BootstrapCommand | None
) -> None:
    shutdown_context()
    monkeypatch.setenv(GONE, "there as the session begins")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (first,) = environments(spawn_procs())
    assert (first.get(LATER), first.get(GONE)) == (None, "there as the session begins")
    assert first["OMP_NUM_THREADS"] == "1"

    monkeypatch.setenv(LATER, "of the client")
    monkeypatch.delenv(GONE)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    (second,) = environments(spawn_procs(bootstrap_command=command))
    assert (second.get(LATER), second.get(GONE)) == ("of the client", None)
    assert second["OMP_NUM_THREADS"] == "5"

    monkeypatch.delenv("OMP_NUM_THREADS")
    asked = [{LATER: "asked for"}, {KEY: "asked for"}]
    procs = spawn_procs({"gpus": 2}, bootstrap_command=command, env=lambda point: asked[point.rank])
    found = environments(procs)
    assert [env.get(LATER) for env in found] == ["asked for", "of the client"]
    assert [env["OMP_NUM_THREADS"] for env in found] == ["1", "1"]


def test_what_the_client_has_set_for_python_holds_for_a_new_mesh(
    spawn_procs: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn_procs()
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    echo = spawn_procs().spawn("echo", Echo)
    expected = subprocess.run(
        [sys.executable, "-c", "print(hash('text'))"],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert echo.apply.call_one(hash, "text").get(timeout=60) == int(expected.stdout)
