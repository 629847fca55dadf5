"""A kernel that is gone leaves no rank of a kept session standing in its editor."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.debug import waiting
from monarch.session import attach
from tests.fault.keepers import keeper, kept_name
from tests.integration.programs import PATIENCE_S

STANDS = """
    import queue
    from monarch.debug import waiting
    from tests.integration.dap_client import DapClient, open_bridge
    from tests.integration.debugging import Stepper

    procs = this_host().spawn_procs({"gpus": 2}, name="workers")
    steppers = procs.spawn("steppers", Stepper)
    steppers.initialized.get()
    keep(name, [procs])
    answer = steppers.step.call(5, (1,))
    while not waiting():
        pass
    came = queue.SimpleQueue()
    client = DapClient(open_bridge(procs, came.put).said, came)
    client.begin()
    client.event("stopped")
"""


@pytest.fixture
def name(own_base_directory: Path) -> Iterator[str]:
    with kept_name(own_base_directory) as found:
        yield found


def test_a_rank_that_a_killed_client_debugged_goes_on_and_is_debugged_by_the_next(
    name: str, tmp_path: Path
) -> None:
    with keeper(tmp_path, name, STANDS) as first:
        first.program.signal(signal.SIGKILL)
        assert first.program.end()[0] == -9
    steppers = attach(name)["steppers"]
    assert steppers.step.call(5, ()).get(timeout=PATIENCE_S).values() == [110, 110]
    assert not waiting()
