"""Breakpoints on ranks of several hosts: one list, one console, whichever agent has them."""

from __future__ import annotations

import inspect
from pathlib import Path

from monarch._src.net.hosts import keys
from monarch.actor import attach_to_workers, shutdown_context
from monarch.debug import attach, cast, resume, waiting
from monarch.observe import interrupt_procs, snapshot
from tests.audits import audited
from tests.integration.dap_client import debugging
from tests.integration.debugging import Stepper, news
from tests.workers import PATIENCE_S, TRUST_ALL, workers


def line_of_step() -> int:
    lines, first = inspect.getsourcelines(Stepper)
    return next(first + at for at, line in enumerate(lines) if "doubled = value * 2" in line)


def test_who_debugs_and_who_kills_is_in_the_audit_of_the_host(tmp_path: Path) -> None:
    keys.make(tmp_path / "job")
    job, audit = str(tmp_path / "job"), tmp_path / "audit"
    with workers(1, "--keys", job, "--audit", str(audit)) as (one,), news() as until:
        hosts = attach_to_workers(ca=job, workers=[one.address])
        procs = hosts.spawn_procs({"gpus": 2}, name="spread")
        steppers = procs.spawn("steppers", Stepper)
        answer = steppers.step.call(5, (1,))
        until(1)
        assert [reply.text for reply in cast("p doubled", "spread")] == ["10\n"]
        resume()
        answer.get(timeout=PATIENCE_S)
        interrupt_procs(procs.slice(gpus=1))
        shutdown_context(reason="the worker is about to end")
    lines = audited(audit)
    told = [line for line in lines if line["what"] in ("debug", "kill")]
    assert {line["what"] for line in told} == {"debug", "kill"}
    for line in told:
        assert (line["mesh"], line["ranks"]) == ("spread", "1")
        assert line["node"].startswith("client-")
    assert "command" in {line["action"] for line in told if line["what"] == "debug"}
    assert "doubled" not in audit.read_text()


def test_ranks_of_two_hosts_are_debugged_as_those_of_one(agent_errors: object) -> None:
    with workers(2) as found, news() as until:
        hosts = attach_to_workers(ca=TRUST_ALL, workers=[one.address for one in found])
        procs = hosts.spawn_procs({"gpus": 2}, name="spread")
        steppers = procs.spawn("steppers", Stepper)
        answer = steppers.step.call(5, (1, 2))
        assert [one.point for one in until(2)] == [
            {"hosts": 0, "gpus": 1},
            {"hosts": 1, "gpus": 0},
        ]
        for place in ({"hosts": 0, "gpus": 0}, {"hosts": 1, "gpus": 1}):
            steppers.slice(**place).ping.call_one().get(timeout=PATIENCE_S)  # behind its step
        (seen,) = [one for one in snapshot() if one.uid == procs.uid]
        assert [row.state for row in seen.rows] == ["idle", "paused", "paused", "idle"]
        assert [reply.text for reply in cast("p doubled", "spread")] == ["10\n"] * 2
        with attach("spread[hosts=1]") as console:
            console.send("!doubled = 0")
            console.send("continue")
        resume()
        assert answer.get(timeout=PATIENCE_S).values() == [110, 110, 100, 110]
        assert not waiting()
        with debugging(procs) as client:
            client.set_breakpoints(inspect.getsourcefile(Stepper) or "", line_of_step())
            answer = steppers.step.call(5, ())
            threads = [client.event("stopped")["threadId"] for _ in range(4)]
            names = {one["id"]: one["name"] for one in client.do("threads")["threads"]}
            assert "spread[hosts=1, gpus=1]" in {names[one] for one in threads}
            for one in threads:
                client.do("continue", threadId=one)
            assert answer.get(timeout=PATIENCE_S).values() == [110] * 4
        shutdown_context(reason="the workers are about to end")
