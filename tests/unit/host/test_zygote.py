"""The zygote reaps its children, and ends what they have started, on every system."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A child that leads a group, starts a process of its own that would sleep, and ends with status 3.
REAPS = """
import os, select, signal, sys
from monarch._src.host.spawn_spec import Ended, decode_from_zygote
from monarch._src.host.zygote import Zygote, seqpacket_pair

if sys.argv[1] == "without":
    del os.waitid
agent, own = seqpacket_pair()
lifeline = os.pipe()[0]
zygote = Zygote(own, lifeline, "no:entry", [])
zygote._reap()  # there is nobody to reap
signal.signal(signal.SIGCHLD, lambda *_: None)
wake_r, wake_w = os.pipe()
os.set_blocking(wake_w, False)
signal.set_wakeup_fd(wake_w)
lives_r, lives_w = os.pipe()
go_r, go_w = os.pipe()
child = os.fork()
if not child:
    os.setsid()
    if not os.fork():
        os.close(lives_r)
        os.close(go_w)
        select.select([], [], [])
    os.read(go_r, 1)
    os._exit(3)
os.close(lives_w)
zygote._ranks[child] = (7, 1, 0)
zygote._reap()  # it has not ended
os.write(go_w, b".")
os.read(wake_r, 1)  # SIGCHLD
zygote._reap()
ended = decode_from_zygote(agent.recv(1 << 16))
assert isinstance(ended, Ended), ended
assert (ended.mesh, ended.rank, ended.pid) == (7, 1, child), ended
assert os.waitstatus_to_exitcode(ended.status) == 3, ended
assert os.read(lives_r, 1) == b""  # what it had started holds it open no more
zygote._reap()
print("reaped")
"""


@pytest.mark.parametrize("waitid", ["with", "without"])
def test_a_child_that_has_ended_is_told_of_and_what_it_started_is_ended(waitid: str) -> None:
    if waitid == "with" and not hasattr(os, "waitid"):
        pytest.skip("this system has no waitid")
    done = subprocess.run(
        [sys.executable, "-c", REAPS, waitid],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "reaped\n"), done.stderr
