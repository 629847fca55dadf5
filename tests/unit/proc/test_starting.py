"""What keeps a proc from starting ends in an error, also where nobody answers any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import Actor, ProcMesh, SupervisionError, endpoint
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
