"""Injected faults on the links of a process: delayed, held and lost messages.

Runs in: a proc that was spawned under `configure(fault_injection=True)`; loaded with the first
rule. Incoming messages are intercepted on the receiving thread, after they are put in order;
outgoing ones in place of `Node.send`, on any thread. Delayed incoming messages go on on the
receiving thread, outgoing ones on a thread of this module.
Invariants: messages from and to the host agent always pass, so the process can be ended at any
time. After the last rule is lifted and no message waits, messages pass as without this module.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, TypeAlias

import msgspec

from monarch._src.actor.errors.remote import pack_exception
from monarch._src.actor.protocols import InspectedRuntime
from monarch._src.config import settings
from monarch._src.errors import MessageLostError
from monarch._src.failures.report import at_text
from monarch._src.net.node import Node
from monarch._src.net.state.link_faults import IN, OUT, VIA_AGENT, FaultyLinks, Verdict
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import (
    OK,
    THROWN,
    Answer,
    Call,
    Cast,
    Message,
    Reply,
    SetLinks,
)

_Item: TypeAlias = "tuple[str, Message, Payload]"
# The refusal of rules in a process that was spawned without the setting.
CONSENT = (
    "fault injection on links is off in this process; call configure(fault_injection=True) before "
    "its mesh is spawned"
)


class LinkFaults:
    """The faults on the links of one process."""

    def __init__(self, runtime: InspectedRuntime) -> None:
        self._runtime = runtime
        self._node = runtime.node
        self._links: FaultyLinks[_Item] = FaultyLinks(runtime.name)
        # Guards the links, and the sending of messages, so that they leave in order.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._deliver_in_turn = runtime.routes.inbound.deliver
        self._on_reply = runtime.handlers[Reply]
        self._installed = False
        self._wake_sent = False  # whether a wake-up of the receiving thread is pending
        self._pipe: tuple[int, int] | None = None
        self._consents = settings().fault_injection

    def set(self, peer: str, message: SetLinks) -> None:
        """Apply rules from the session's client or the mesh's owner; refuse other senders."""
        run = self._runtime
        owners = {ref.owner for ref in (run.client_ref, run.proc_ref) if ref is not None}
        why = ""
        if peer not in owners:
            why = f"{peer} neither owns this process nor is the client of its session"
        elif message.add and not self._consents:
            why = CONSENT
        lost: list[_Item] = []
        if not why:
            with self._lock:
                for number in message.lift:
                    lost += self._links.lifted(number)
                for rule in message.add:
                    self._links.ruled(rule)
                self._install_or_remove()
                self._changed.notify()
        for item in lost:
            self._report_lost(item)
        answer = msgspec.msgpack.encode((why, len(lost)))
        Node.send(self._node, peer, Reply(message.call, message.rank, OK), Payload(answer))

    # --- interception -------------------------------------------------------------------------

    def _install_or_remove(self) -> None:
        """Install the interception if there are rules or waiting messages; else remove it."""
        busy = bool(self._links)
        if busy == self._installed:
            return
        self._installed = busy
        run = self._runtime
        run.routes.inbound.deliver = self._on_incoming if busy else self._deliver_in_turn
        run.handlers[Reply] = self._on_incoming if busy else self._on_reply
        self._node.divert(self._send if busy else None)
        if self._pipe is None:
            self._pipe = os.pipe()
            for fd in self._pipe:
                os.set_blocking(fd, False)
            self._node.leader.watch(self._pipe[0], self._release_incoming)
            threading.Thread(target=self._run, name="monarch-links", daemon=True).start()

    def _on_incoming(self, peer: str, message: Any, payload: Payload) -> None:
        if peer == AGENT:
            self._deliver(peer, message, payload)
            return
        lossy = isinstance(message, Call)
        with self._lock:
            verdict = self._links.came(
                IN, peer, (peer, message, payload), time.monotonic(), lossy=lossy
            )
            self._changed.notify()
        if verdict is Verdict.PASS:
            self._deliver(peer, message, payload)

    def _deliver(self, peer: str, message: Any, payload: Payload) -> None:
        if isinstance(message, Reply):
            self._on_reply(peer, message, payload)
        else:
            self._deliver_in_turn(peer, message, payload)

    def _send(self, name: str, message: Message, payload: Payload) -> bool:
        direction = VIA_AGENT if isinstance(message, Answer) else OUT
        to = message.to if isinstance(message, Answer) else name
        relayed = isinstance(message, (Answer, Cast))
        if name == self._node.name or (name == AGENT and not relayed):
            return Node.send(self._node, name, message, payload)
        if not self._node.knows(name):
            return False
        lossy = isinstance(message, (Reply, Answer)) and message.status == OK
        with self._lock:
            # The caller may reuse the message object for other ranks.
            copied = (name, msgspec.structs.replace(message), payload.own())
            verdict = self._links.came(direction, to, copied, time.monotonic(), lossy=lossy)
            self._changed.notify()
            if verdict is not Verdict.PASS:
                return True
            return Node.send(self._node, name, message, payload)

    # --- release --------------------------------------------------------------------------

    def _run(self) -> None:
        """Send delayed messages in time, and wake the receiving thread for incoming ones."""
        with self._lock:
            while True:
                now = time.monotonic()
                for item in (*self._links.due(OUT, now), *self._links.due(VIA_AGENT, now)):
                    Node.send(self._node, *item)
                self._install_or_remove()
                inward = None if self._wake_sent else self._links.next_due(IN)
                if inward is not None and inward <= now:
                    self._wake_receiver()
                    continue
                times = [inward, self._links.next_due(OUT), self._links.next_due(VIA_AGENT)]
                first = min((time for time in times if time is not None), default=None)
                self._changed.wait(None if first is None else max(0.0, first - now))

    def _wake_receiver(self) -> None:
        self._wake_sent = True
        if self._pipe is not None:
            os.write(self._pipe[1], b".")

    def _release_incoming(self) -> None:
        """Handle the incoming messages that are due. Called on the receiving thread."""
        if self._pipe is not None:
            os.read(self._pipe[0], 1)
        with self._lock:
            self._wake_sent = False
            arrived = self._links.due(IN, time.monotonic())
            self._install_or_remove()
            self._changed.notify()
        for item in arrived:
            self._deliver(*item)

    def _report_lost(self, item: _Item) -> None:
        """Report a lost message to the caller that waits for its answer, if any."""
        name, message, _ = item
        if isinstance(message, Call):
            if message.call:
                error = MessageLostError(f"the call of {message.endpoint}", self._where())
                self._runtime.routes.reply(name, message, THROWN, pack_exception(error))
        elif isinstance(message, (Reply, Answer)):
            error = MessageLostError("the answer", self._where())
            answer = msgspec.structs.replace(message, status=THROWN)
            self._node.send(name, answer, pack_exception(error))

    def _where(self) -> str:
        ref, rank = self._runtime.proc_ref, self._runtime.rank
        if ref is None:
            return self._runtime.name
        return ref.name + at_text(dict(ref.extent.point_of_rank(rank)))
