"""The loop of a sync actor: its own thread takes one message after another and runs it.

Runs in: a proc, or a client that hosts controllers, on the actor's thread. While the actor is idle,
this thread may be the receive leader, so that a message needs no hand-over between threads.
"""

from __future__ import annotations

import logging
from typing import Any

from monarch._src.actor.run.cell import ActorCell
from monarch._src.actor.run.endpoint_table import BoundEndpoint
from monarch._src.actor.run.mailbox import CheckFailures, Item, Stop
from monarch._src.actor.tracing import TRACE
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


def serve(cell: ActorCell) -> None:
    """Construct the actor and serve its messages until it ends."""
    shield = shield_this_thread(CallCancelled)
    try:
        cell.raise_in = shield.raise_in
        if not construct(cell, shield):
            return
        mailbox, wait = cell.mailbox, cell.runtime.node.leader.wait
        while True:
            item = mailbox.take() if mailbox.done else None
            if item is not None:
                if handle(cell, shield, item):
                    break
            elif cell.dead is not None:
                break
            else:
                try:
                    if not wait(mailbox, idle=True):
                        return  # the node is closed
                except KeyboardInterrupt:
                    log.debug("interrupted while idle")
        end(cell)
    finally:
        cell.raise_in = None
        unshield_this_thread(shield)


def construct(cell: ActorCell, shield: Shield | SignalShield) -> bool:
    """Construct the actor. Returns False if its constructor raised, which has ended the actor."""
    try:
        try:
            shield.begin(cell)
            cell.construct()
        finally:
            shield.work = None
            shield.end()
    except BaseException as error:
        shield.end()
        cell.fail_early(cell.describe(error, "constructor", None), error)
        return False
    cell.supervision.watch_blocking_waits()
    return True


def handle(cell: ActorCell, shield: Shield | SignalShield, item: Item) -> bool:
    """Handle one message. Returns whether the actor is to end."""
    if isinstance(item, tuple):
        calls = cell.running_calls
        if calls.accept(*item):
            peer, call, _, _ = item
            calls.complete(peer, call, *_run_endpoint(cell, shield, *item))
    elif isinstance(item, CheckFailures):
        cell.supervision.check_failures()
    elif isinstance(item, Stop):
        cell.request_stop(item)
        while cell.supervisor.is_living and cell.supervision.check_failures():
            pass
        return not cell.supervisor.is_living
    elif cell.dead is None:
        supervision = cell.supervision
        supervision.on_undeliverable_answered(item, supervision.call_undeliverable_hook(item))
    return False


def end(cell: ActorCell) -> None:
    """Wait for the meshes that the actor owns, and clean up."""
    cell.wait_for_meshes()
    failed = None if cell.finalized else cell.clean_up(cell.cause)
    cell.on_cleaned_up(failed)


def _run_endpoint(
    cell: ActorCell, shield: Shield | SignalShield,
    peer: str, call: Call, payload: Payload, arrived_ns: int,
) -> tuple[Any, BaseException | None, BoundEndpoint | None, int]:  # fmt: skip
    """Run an endpoint; returns its value or exception, the endpoint, and the duration in ns."""
    endpoints = cell.endpoints
    assert endpoints is not None
    cell.instance.endpoint = call.endpoint
    running = cell.begin_call(call)
    bound, ended = None, None if TRACE.on_run is None else TRACE.on_run(cell, call)
    try:
        bound = endpoints.look_up(call, payload, running[0] - arrived_ns)
        value = None
        if bound is not None:
            args, kwargs = bound.arguments(peer, call, payload)
            try:
                # From `begin` on another thread can raise in the call. A cancellation that came
                # before has left a mark, so the mark is looked up after `begin`.
                shield.begin(call)
                cell.running_calls.raise_if_cancelled(call)
                value = bound.method.function(cell.instance_object, *args, **kwargs)
            finally:
                # No bytecode may precede this one, see `Shield`.
                shield.work = None
                shield.end()
    except BaseException as error:
        shield.end()  # the exception may have interrupted the first `end`
        cell.runtime.hooks.debugger.on_endpoint_error(cell, error)
        if ended is not None:
            ended(error)
        return None, error, bound, cell.end_call(running)
    if ended is not None:
        ended(None)
    return value, None, bound, cell.end_call(running)


# The functions that call user code on a sync actor's thread.
ENTRIES = (ActorCell.construct.__code__, _run_endpoint.__code__, ActorCell.clean_up.__code__)
