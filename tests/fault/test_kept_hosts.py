"""A kept session over hosts: its client is killed, and the next one finds what actors did.

The hosts are network namespaces: three workers with keys, and a fourth with the clients.
"""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from monarch._src.net.hosts import keys
from tests.fault.keepers import ATTACHES, keeper, kept_name
from tests.integration.gates import GateKeeper
from tests.netns import hosts_up, v4, why_not
from tests.workers import worker

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.slow]
KEEPS = """
    from monarch.actor import attach_to_workers
    hosts = attach_to_workers(ca=sys.argv[2], workers=sys.argv[3:])
    procs = hosts.spawn_procs({"gpus": 2}, name="workers")
    mine = procs.spawn("mine", Mine)
    mine.add.call(1).get()
    keep(name, [procs])
"""


def test_a_client_that_loses_all_of_its_hosts_lets_go_and_takes_up_what_went_on(
    tmp_path: Path, own_base_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_LIVENESS", "5")
    job = tmp_path / "job"
    keys.make(job)
    with ExitStack() as stack:
        hosts = stack.enter_context(hosts_up(3))
        for number in (1, 2):
            serves = ("--address", "tcp://*:26600", "--keys", str(job))
            stack.enter_context(worker(*serves, before=hosts.command(number)))
        python = hosts.command(3, sys.executable)
        workers = [f"tcp://{v4(number)}:26600" for number in (1, 2)]
        name = stack.enter_context(kept_name(own_base_directory))
        client = keeper(tmp_path / "client", name, KEEPS, str(job), *workers, command=python)
        with client as one:
            hosts.cut(3)
            (said,) = one.do("mine.add.call(1000).get()")
            assert "host" in said
            assert "is lost" in said
            # In the program, which has no other way to wait for what its hook is told.
            one.do("while len(told) < 2: time.sleep(0.05)")
            hosts.mend(3)
            assert one.do("detach()") == []
            assert one.do("session = attach(name)") == []
            (values,) = one.do("print(session['mine'].add.call(1).get(60).values())")
            assert values in (str([2] * 4), str([1002] * 4))
            assert one.do("monarch.actor.shutdown_context()") == []


def test_the_client_of_a_kept_session_over_three_hosts_is_killed_in_the_middle_of_a_call(
    tmp_path: Path, own_base_directory: Path, gate: GateKeeper
) -> None:
    job = tmp_path / "job"
    keys.make(job)
    with ExitStack() as stack:
        hosts = stack.enter_context(hosts_up(4))
        for number in (1, 2, 3):
            serves = ("--address", "tcp://*:26600", "--keys", str(job))
            stack.enter_context(worker(*serves, before=hosts.command(number)))
        python = hosts.command(4, sys.executable)
        workers = [f"tcp://{v4(number)}:26600" for number in (1, 2, 3)]
        name = stack.enter_context(kept_name(own_base_directory))
        # Who ends it has to reach the workers, too.
        first = keeper(tmp_path / "first", name, KEEPS, str(job), *workers, command=python)
        with first as one:
            passes = f"Gate({gate.gate.entered!r}, {gate.gate.leave!r})"
            one.do(f"answer = mine.add_at.call({passes}, 10)")
            gate.wait_entered(6)
            one.program.signal(signal.SIGKILL)
            assert one.program.end()[0] == -9
        with keeper(tmp_path / "next", name, ATTACHES, command=python) as next_one:
            next_one.do("later = mine.add.call(100)")
            gate.open(6)
            assert next_one.value("later.get(timeout=60).values()") == str([111] * 6)
            assert next_one.do("monarch.actor.shutdown_context()") == []
