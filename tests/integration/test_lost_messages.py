"""Who gets what is no message cannot tell whose it was: it ends, and all who wait hear of that."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from monarch._src.actor.runtime import runtime
from monarch._src.core.ids import proc_node
from monarch._src.net.router import OFTEN
from monarch._src.wire.ring import ROOM
from monarch.actor import SupervisionError
from tests.conftest import Faults
from tests.integration.chorus import Singer

RANKS = 4


def test_a_call_behind_what_is_no_message_is_answered(faults: Faults, spawn_procs: Any) -> None:
    procs = spawn_procs({"gpus": RANKS})
    chorus = procs.spawn("chorus", Singer)
    assert chorus.note.call("sense").get().values() == ["sense"] * RANKS
    pid = chorus.slice(gpus=1).pid.call_one().get()
    node = proc_node(int(procs.uid, 16), 1)
    pipes = runtime().node.router._pipes.items()
    (pipe,) = (pipe for route, pipe in pipes if route.decode().removeprefix(">") == node)
    assert pipe.send([b"\x80\0\0\0 of no frames"])
    error = chorus.slice(gpus=1).note.call_one("behind it").exception(timeout=60)
    assert isinstance(error, SupervisionError)
    assert f"(pid {pid}) died" in str(error)
    assert "is lost: no message begins with the bytes 80000000" in str(error)
    rest = chorus.slice(gpus=slice(2, RANKS))
    assert rest.note.call("still here").get().values() == ["still here"] * 2


@pytest.mark.skipif(
    not (sys.platform == "linux" and os.uname().machine == "x86_64"),
    reason="only there do several processes hear of one write",
)
def test_a_call_by_a_ring_that_is_none_is_answered(faults: Faults, spawn_procs: Any) -> None:
    chorus = spawn_procs({"gpus": RANKS}).spawn("chorus", Singer)
    for number in range(OFTEN + 4):
        assert chorus.note.call(number).get().values() == [number] * RANKS
    (multicast,) = runtime().node.router._multicasts.values()
    multicast._ring._at += ROOM
    multicast._ring._until += 2 * ROOM
    error = chorus.note.call("nonsense").exception(timeout=60)
    assert isinstance(error, SupervisionError)
    assert f"is lost: a ring of {ROOM} bytes holds nothing from" in str(error)
