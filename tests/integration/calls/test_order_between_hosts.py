"""The randomized model of order where messages are relayed: through gateways, to other hosts.

What the client and its own ranks send goes over a link and is handed on by the agent there; ranks
of one worker send to those of the other, and to their own host; casts go once a host. Run again
what has failed with MONARCH_ORDER_SEED.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import HostMesh, attach_to_workers, shutdown_context, this_host
from tests.integration.calls.test_order_model import ClientThread, seed
from tests.integration.traffic import (
    AsyncChecker,
    AsyncDriver,
    Checker,
    Driver,
    Sent,
    check_books,
)
from tests.workers import TRUST_ALL, workers

__all__ = ["seed"]
BURSTS, MESSAGES = 4, 15


@pytest.fixture(scope="module")
def hosts(agent_errors: object) -> Iterator[HostMesh]:
    with workers(2) as found:
        yield attach_to_workers(ca=TRUST_ALL, workers=[one.address for one in found])
        shutdown_context(reason="the workers are about to end")


def test_no_message_that_is_relayed_to_another_host_overtakes_another_of_its_sender(
    hosts: HostMesh, seed: int
) -> None:
    there, here = hosts.spawn_procs({"gpus": 2}, name="there"), this_host().spawn_procs(name="here")
    sent: dict[type[Any], dict[str, Sent]] = {Checker: {}, AsyncChecker: {}}
    for kind, senders in sent.items():
        checkers = there.spawn("checkers", kind)
        groups: list[Any] = [
            here.spawn("of the client", Driver, seed, large=True),
            there.spawn("beside", AsyncDriver, seed, large=True),
            there.slice(gpus=1).spawn("beside too", Driver, seed, large=True),
        ]
        answers = [group.drive.call(checkers, BURSTS, MESSAGES) for group in groups]
        threads = [
            ClientThread(f"thread {n} of the client", checkers, seed, BURSTS, MESSAGES)
            for n in range(2)
        ]
        for thread in threads:
            thread.start()
        done = [thread.result() for thread in threads]
        for answer in answers:
            done += answer.get(timeout=300).values()
        senders.update({one.sender: one for one in done})
        check_books(checkers, senders.values())
    here.stop().get(timeout=60)
    there.stop().get(timeout=60)
