"""Who gets what is no message cannot tell whose it was: it ends, and all who wait hear of that."""

from __future__ import annotations

from typing import Any

from monarch._src.actor.runtime import runtime
from monarch._src.wire.ids import proc_node
from monarch.actor import SupervisionError
from tests.conftest import Faults
from tests.integration.sample_actors import Echo, Teller

RANKS = 4


def test_a_call_behind_what_is_no_message_is_answered(faults: Faults, spawn_procs: Any) -> None:
    procs = spawn_procs({"gpus": RANKS})
    echo = procs.spawn("echo", Echo)
    assert echo.same.call("sense").get().values() == ["sense"] * RANKS
    pid = procs.spawn("teller", Teller).slice(gpus=1).pid.call_one().get()
    node = proc_node(int(procs.uid, 16), 1)
    pipes = runtime().node.router._pipes.items()
    (pipe,) = (pipe for route, pipe in pipes if route.decode().removeprefix(">") == node)
    assert pipe.send([b"\x80\0\0\0 of no frames"])
    error = echo.slice(gpus=1).same.call_one("behind it").exception(timeout=60)
    assert isinstance(error, SupervisionError)
    assert f"(pid {pid}) died" in str(error)
    assert "are lost: a message cannot begin with the bytes 80000000" in str(error)
    rest = echo.slice(gpus=slice(2, RANKS))
    assert rest.same.call("still here").get().values() == ["still here"] * 2
