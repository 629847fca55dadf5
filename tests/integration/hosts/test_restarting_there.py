"""`restart` of ranks on worker hosts."""

from __future__ import annotations

import pytest

from monarch.actor import SupervisionError, attach_to_workers, shutdown_context
from monarch.observe import snapshot
from tests.conftest import Faults
from tests.fault.restarted_actors import Counting, counts
from tests.workers import TRUST_ALL, workers


def test_a_rank_of_a_worker_comes_back_there_and_not_where_the_host_is_lost(
    faults: Faults, agent_errors: object
) -> None:
    with workers(2) as found:
        hosts = attach_to_workers(ca=TRUST_ALL, workers=[one.address for one in found])
        mesh = hosts.spawn_procs({"gpus": 2}, name="mesh")
        counting = mesh.spawn("counting", Counting, "first")
        assert counts(counting) == [1] * 4
        mesh.push(rate=0.1)
        one = mesh.slice(hosts=1, gpus=0)
        counting.slice(hosts=1, gpus=0).die.call_one("killed").exception(timeout=60)
        faults.take_ranks({2})
        assert one.restart().get(timeout=60) == ()
        assert counts(counting) == [2, 2, 1, 2]
        assert mesh.pull("rate").values() == [0.1] * 4
        assert [row.restarts for row in snapshot()[-1].rows] == [0, 0, 1, 0]
        mesh.slice(gpus=0).restart().get(timeout=60)
        assert counts(counting) == [1, 3, 1, 3]
        found[1].process.terminate()
        faults.take_ranks({2, 3})
        with pytest.raises(SupervisionError, match="no rank is restarted"):
            one.restart()
        shutdown_context(reason="the workers are about to end")
