"""Settings: what they change, and what is said of those that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch._src.actor.runtime import runtime
from monarch.actor import Actor, ProcMesh, SupervisionError, endpoint, this_host
from monarch.buffers import Buffer
from monarch.config import configure, configured, get_global_config
from monarch.observe import meshes
from tests.integration.programs import run
from tests.integration.sample_actors import Echo, Teller

Spawn = Callable[..., ProcMesh]


def test_an_unknown_setting_is_refused_with_those_of_near_names() -> None:
    with pytest.raises(ValueError, match="no setting 'livenes'; did you mean liveness"):
        configure(livenes=3)
    with pytest.raises(TypeError, match="liveness='soon': give a duration"):
        configure(liveness="soon")


def test_settings_hold_for_the_length_of_a_block() -> None:
    before = get_global_config()
    with configured(liveness="7s", cleanup_timeout=0.5) as inside:
        assert (inside["liveness"], inside["cleanup_timeout"]) == (7.0, 0.5)
    assert get_global_config() == before


class Reader(Actor):
    """Says what is set where it lives."""

    @endpoint
    def settings(self) -> dict[str, Any]:
        return get_global_config()

    @endpoint
    def settings_of_a_child(self) -> dict[str, Any]:
        child = this_host().spawn_procs({"gpus": 1})
        return child.spawn("reader", Reader).slice(gpus=0).settings.call_one().get()

    @endpoint
    def spins(self) -> tuple[float, float]:
        baton = runtime().node.leader
        return baton._spin.limit_s, baton._idle_spin.limit_s

    @endpoint
    def threshold_of_a_buffer(self) -> list[int]:
        buffer = Buffer()
        for size in (2, 3, 4):
            buffer.write(b"x" * size)
        return [len(piece) for piece in buffer.freeze()]


def test_settings_reach_the_processes_of_a_new_mesh_and_those_that_they_spawn(
    spawn_procs: Spawn,
) -> None:
    with configured(liveness="20s", cleanup_timeout="3s", small_write_threshold=3):
        reader = spawn_procs({"gpus": 2}).spawn("reader", Reader)
        here = get_global_config()
    assert get_global_config() != here
    assert reader.settings.call().get().values() == [here, here]
    assert reader.slice(gpus=0).settings_of_a_child.call_one().get() == here
    assert reader.threshold_of_a_buffer.call().get().values() == [[2, 3, 4]] * 2


@pytest.mark.parametrize("spin", [None, 0, "3ms"])
def test_how_long_a_wait_looks_before_it_sleeps_is_set_where_its_process_begins(
    spin: object, spawn_procs: Spawn
) -> None:
    with configured(spin=spin) as here:
        reader = spawn_procs({"gpus": 1}).spawn("reader", Reader).slice(gpus=0)
    limit_s = here["spin"]
    assert limit_s == (200e-6 if spin is None else 0.0 if spin == 0 else 3e-3)
    assert reader.spins.call_one().get() == (limit_s, limit_s)


def test_settings_do_not_reach_a_mesh_that_exists(four: ProcMesh) -> None:
    reader = four.spawn("reader", Reader)
    before = reader.settings.call().get().values()
    with configured(liveness="20s"):
        assert reader.settings.call().get().values() == before
    assert reader.threshold_of_a_buffer.call().get().values() == [[9]] * 4


def test_what_a_mesh_is_given_as_environment_comes_before_what_is_set_here(
    spawn_procs: Spawn,
) -> None:
    with configured(liveness="20s", cleanup_timeout="3s"):
        procs = spawn_procs({"gpus": 2}, env=lambda point: {"MONARCH_LIVENESS": f"3{point.rank}s"})
    found = procs.spawn("reader", Reader).settings.call().get().values()
    assert [(each["liveness"], each["cleanup_timeout"]) for each in found] == [(30, 3), (31, 3)]


def test_time_outs_in_an_order_that_cannot_work_are_refused_and_nothing_is_spawned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, there = get_global_config(), meshes()
    with pytest.raises(ValueError, match="cleanup_timeout=60 s is longer than liveness=30 s"):
        configure(cleanup_timeout="1m", liveness="30s")
    assert get_global_config() == before
    monkeypatch.setenv("MONARCH_CLEANUP_TIMEOUT", "1m")
    monkeypatch.setenv("MONARCH_LIVENESS", "30s")
    with pytest.raises(ValueError, match=r"60 s \(from MONARCH_CLEANUP_TIMEOUT\) is longer than"):
        this_host().spawn_procs()
    assert meshes() == there


def test_a_call_to_an_actor_that_nobody_makes_is_refused_in_time(spawn_procs: Spawn) -> None:
    with configured(liveness="100ms", message_delivery_timeout="200ms", startup_timeout="60s"):
        echo = spawn_procs({"gpus": 2}).spawn("echo", Echo)
    assert echo.rank.call().get().values() == [0, 1]
    reduced: Any = echo.__reduce__()
    rebuild, (uid, *rest) = reduced
    unknown = rebuild(uid + 1, *rest)
    with pytest.raises(SupervisionError, match="there is no such actor on this proc"):
        unknown.rank.call().get(timeout=60)


def test_a_mesh_has_the_time_for_clean_up_that_it_was_spawned_with(tmp_path: Path) -> None:
    program = """
        import sys, threading
        from monarch.actor import Actor, endpoint, this_host
        from monarch.config import configure

        class Slow(Actor):
            @endpoint
            def nothing(self):
                pass

            def __cleanup__(self, exception):
                threading.Event().wait(3)  # longer than a session waits for what needs no time
                open(sys.argv[1], "w").write("cleaned up")

        configure(liveness="2m", cleanup_timeout="1m")
        this_host().spawn_procs().spawn("slow", Slow).nothing.call_one().get()
        configure(cleanup_timeout=0)
    """
    said = tmp_path / "said"
    assert run(tmp_path, program.replace("sys.argv[1]", repr(str(said)))) == (0, "", "")
    assert said.read_text() == "cleaned up"


def test_a_preload_that_cannot_be_imported_is_an_error_that_names_the_module(
    spawn_procs: Spawn, faults: object
) -> None:
    procs = spawn_procs({"gpus": 2}, preload=["no_such_module_anywhere"])
    said = r"never started: preloading 'no_such_module_anywhere' failed with ModuleNotFoundError"
    with pytest.raises(SupervisionError, match=said):
        procs.initialized.get(timeout=60)
    with pytest.raises(SupervisionError, match=said):
        procs.spawn("teller", Teller).pid.call().get(timeout=60)
    assert spawn_procs().spawn("teller", Teller).pid.call_one().get()


def test_a_preload_that_raises_is_told_with_what_it_raised(
    spawn_procs: Spawn, faults: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises_on_import.py").write_text("raise OSError('no such library')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    procs = spawn_procs({"gpus": 2}, preload=["raises_on_import"])
    with pytest.raises(SupervisionError, match="OSError: no such library"):
        procs.initialized.get(timeout=60)


def test_settings_come_from_the_environment_where_the_program_sets_none(tmp_path: Path) -> None:
    program = """
        import os
        os.environ["MONARCH_LIVENESS"] = "12s"
        os.environ["MONARCH_PRELOAD"] = "wave"
        import sys
        from monarch.actor import Actor, endpoint, this_host
        from monarch.config import get_global_config

        class Look(Actor):
            @endpoint
            def look(self):
                return "wave" in sys.modules

        look = this_host().spawn_procs({"gpus": 1}).spawn("look", Look)
        print(get_global_config()["liveness"], look.look.call_one().get())
    """
    assert run(tmp_path, program) == (0, "12.0 True\n", "")
