"""A mesh that has lost a rank is spawned again by one line, and one with --restart needs none."""

from __future__ import annotations

import pytest

from tests.notebook.kernel import Kernel

pytestmark = pytest.mark.slow

FRAIL = """
import os
from monarch.actor import Actor, endpoint

class Frail(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def die(self):
        os._exit(3)

    @endpoint
    def variable(self):
        return os.environ.get("MODE")
"""


def test_a_mesh_with_a_dead_rank_is_spawned_again_as_it_was(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2 --env MODE=fast")
    kernel.ok(f"{FRAIL}\nfrail = workers.spawn('frail', Frail)\nsame = workers")
    text = kernel.run("frail.slice(gpus=1).die.call_one().get()").traceback
    assert "\n%monarch restart workers[gpus=1]\n" in text
    assert kernel.ok("%monarch restart workers").stdout == (
        "restarted workers: 2 new processes; spawn its actors again: frail\n"
    )
    kernel.ok("frail = workers.spawn('frail', Frail)")
    assert kernel.value("set(frail.variable.call().get().values())") == "{'fast'}"
    assert kernel.value("same is workers") == "True"
    kernel.ok("%monarch stop workers")


def test_a_mesh_that_was_spawned_by_code_or_is_kept_is_left_as_it_is(kernel: Kernel) -> None:
    kernel.ok("from monarch.actor import this_host\nw = this_host().spawn_procs(name='w')")
    assert kernel.refused("%monarch restart w") == (
        "w was spawned by code, whose options this kernel does not know; stop it, and run that "
        "cell again"
    )
    assert kernel.refused("%monarch restart") == "restart needs the name of a mesh; there is w"
    assert kernel.refused("%monarch restart w w") == "restart takes one mesh at a time"
    assert "there is no mesh 'nobody'" in kernel.refused("%monarch restart nobody")
    assert kernel.refused("%monarch spawn k --keep --restart").startswith(
        "k: a mesh is either kept or restarted"
    )
    assert kernel.value("w.stopped") in ("None", "False", "''")
    kernel.ok("%monarch stop w")


def test_a_rank_of_a_mesh_with_restart_comes_back_with_its_actor(kernel: Kernel) -> None:
    kernel.ok("%monarch spawn workers gpus=2 --restart")
    kernel.ok(f"{FRAIL}\nfrail = workers.spawn('frail', Frail)")
    before = kernel.value("frail.pid.call().get().values()")
    text = kernel.run("frail.slice(gpus=1).die.call_one().get()").traceback
    assert "%monarch restart" not in text
    after = kernel.value("frail.pid.call().get().values()")
    assert before != after
    assert before.split(",")[0] == after.split(",")[0]
    kernel.ok("%monarch stop workers")
