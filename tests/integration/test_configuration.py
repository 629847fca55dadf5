"""Settings: what they change, and what is said of those that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import ProcMesh, SupervisionError
from monarch.config import configure, configured, get_global_config
from tests.integration.actors import Teller
from tests.integration.programs import run

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
