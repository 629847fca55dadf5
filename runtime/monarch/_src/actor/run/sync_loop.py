"""How a sync actor lives: its own thread takes one message after another, and runs it.

Runs in: a proc, or a client that hosts controllers, on the actor's thread. It waits for its
messages through the baton, so an idle actor receives them itself.
"""

from __future__ import annotations

import logging
from typing import Any

from monarch._src.actor.errors.remote import unship
from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.endpoint_table import BoundEndpoint, EndpointTable
from monarch._src.actor.run.interruptible_sleep import make_interruptible
from monarch._src.actor.run.mailbox import CheckFailures, Stop
from monarch._src.errors import CallCancelled
from monarch._src.net.local.interrupt import (
    Shield,
    SignalShield,
    shield_this_thread,
    unshield_this_thread,
)
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import Call

log = logging.getLogger("monarch.actor")


def live(worker: ActorCell) -> None:
    """Construct the actor and serve its messages until it ends."""
    shield = shield_this_thread(CallCancelled)
    if isinstance(shield, Shield) and worker.runtime.proc_ref is not None:  # not in a client
        make_interruptible()
    try:
        worker.raise_in = shield.raise_in
        _live(worker, shield)
    finally:
        worker.raise_in = None
        unshield_this_thread(shield)


def _live(worker: ActorCell, shield: Shield | SignalShield) -> None:
    try:
        try:
            shield.begin(worker)
            worker.construct()
        finally:
            shield.work = None
            shield.end()
    except BaseException as error:
        shield.end()
        worker.end(worker.describe(error, "constructor", None), error)
        return
    assert worker.endpoints is not None
    endpoints, supervision, keeper = worker.endpoints, worker.supervision, worker.keeper
    supervision.watch_waits()
    mailbox, wait = worker.mailbox, worker.runtime.node.leader.wait
    take, finish = worker.in_hand.take, worker.in_hand.finish
    while True:
        item = mailbox.take() if mailbox.done else None
        if item is None:
            if worker.dead is not None:
                break
            try:
                if not wait(mailbox, idle=True):
                    return  # the node is closed
            except KeyboardInterrupt:
                log.debug("interrupted while idle")
            continue
        if isinstance(item, tuple):
            peer, call, payload, _ = item
            if take(peer, call, payload):
                fatal = finish(peer, call, *_run_endpoint(worker, endpoints, shield, *item))
                if fatal is not None:
                    worker.condemn(*fatal)
        elif isinstance(item, CheckFailures):
            supervision.judge()
        elif isinstance(item, Stop):
            worker.told_to_stop(item)
            while keeper.lives and supervision.judge():
                pass
            if not keeper.lives:
                break
        elif worker.dead is None:
            supervision.settled(item, supervision.returned(item))
    worker.wait_for_meshes()
    failed = None if worker.gone else worker.clean_up(worker.cause)
    worker.cleaned(failed)


def _run_endpoint(
    worker: ActorCell, endpoints: EndpointTable, shield: Shield | SignalShield,
    peer: str, call: Call, payload: Payload, came_ns: int,
) -> tuple[Any, BaseException | None, BoundEndpoint | None, int]:  # fmt: skip
    """Run an endpoint: its value, or what it raised; what ran, and for how long (ns)."""
    worker.set_context(call)
    worker.instance.endpoint = call.endpoint
    running = worker.runtime.slot.begin(worker.board_name, call.endpoint.encode())
    served = None
    try:
        served = endpoints.take(call, payload, running[0] - came_ns)
        value = None
        if served is not None:
            args, kwargs = unship(payload)
            payload.drop()
            if call.by_port:
                args = (endpoints.port_for(peer, call, served.counts), *args)
            try:
                shield.begin(call)
                value = served.method.function(worker.instance_object, *args, **kwargs)
            finally:
                shield.work = None
                shield.end()
    except BaseException as error:
        shield.end()  # it may have been raised as the first `end` began
        if worker.runtime.on_failure is not None:
            worker.runtime.on_failure(worker, error)
        return None, error, served, worker.ran(running)
    return value, None, served, worker.ran(running)


# Where code of users begins on a sync actor's thread.
ENTRIES = (ActorCell.construct.__code__, _run_endpoint.__code__, ActorCell.clean_up.__code__)
