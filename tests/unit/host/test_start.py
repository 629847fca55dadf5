"""What keeps a proc from starting ends in an error, also where nobody answers any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import Actor, ProcMesh, SupervisionError, endpoint, shutdown_context
from monarch.config import configured
from tests.conftest import Faults


class Greeter(Actor):
    @endpoint
    def greet(self) -> str:
        return "hello"


def test_a_preload_that_never_ends_does_not_keep_anyone_waiting(
    spawn_procs: Callable[..., ProcMesh], faults: Faults, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "never_imported.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.syspath_prepend(tmp_path)
    with configured(startup_timeout="200ms"):
        mesh = spawn_procs({"gpus": 2}, preload=["never_imported"])
        greeters = mesh.spawn("greeters", Greeter)
    with pytest.raises(SupervisionError, match=r"never started: it did not answer within 0\.2 s"):
        greeters.greet.call().get(timeout=60)
    mesh.stop().get(timeout=60)
    shutdown_context()  # the zygote of this session imports for ever


def test_an_environment_too_large_to_pass_fails_its_own_mesh_and_no_other(
    spawn_procs: Callable[..., ProcMesh], faults: Faults
) -> None:
    others = spawn_procs({"gpus": 1}).spawn("others", Greeter)
    mesh = spawn_procs({"gpus": 2}, env={"LARGE": "x" * 2_000_000})
    with pytest.raises(SupervisionError, match=r"never started: .* pass less in its environment"):
        mesh.spawn("greeters", Greeter).greet.call().get(timeout=60)
    mesh.stop().get(timeout=60)
    assert others.greet.call().get(timeout=60).values() == ["hello"]
