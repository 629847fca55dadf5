"""Handlers of the messages that inspect a process: metrics, actors, tables, faults, debugging.

Runs in: any process with a runtime, on the receiving thread.
Owns: the injected faults of the process's links.
Invariants: no handler disturbs running user code. Injected faults, and the features of
higher packages (`actor.parts`), are loaded on first use.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._src.actor.future import PAUSES
from monarch._src.actor.parts import parts
from monarch._src.actor.state.program_metrics import TELEMETRY
from monarch._src.events import RankPaused, bus
from monarch._src.failures.endpoint_text import endpoint_text
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import (
    OK,
    BreakIn,
    BridgeBytes,
    DebugCommand,
    KeepFailures,
    ReadActors,
    ReadCalls,
    ReadMetrics,
    ReadTable,
    ReadWaits,
    Reply,
    SetBridge,
    SetHistory,
    SetLinks,
    SetLogLevel,
    WaitsRead,
)
from monarch._src.wire.messages import RankPaused as RankPausedMessage
from monarch._src.wire.process_codec import ActorsSeen, Counted, packed_actors, packed_metrics

if TYPE_CHECKING:
    from monarch._src.actor.inspect.injected_link_faults import LinkFaults
    from monarch._src.actor.protocols import InspectedRuntime


class InspectHandlers:
    """The inspection handlers of one process."""

    def __init__(self, runtime: InspectedRuntime) -> None:
        self._run = runtime
        self._link_faults: LinkFaults | None = None
        self.handlers: dict[type, Callable[[str, Any, Payload], None]] = {
            ReadMetrics: self._on_read_metrics,
            ReadActors: self._on_read_actors,
            ReadCalls: self._on_read_calls,
            ReadTable: self._on_read_table,
            SetHistory: self._on_set_history,
            ReadWaits: self._on_read_waits,
            SetLogLevel: self._on_set_log_level,
            SetLinks: self._on_set_links,
            RankPausedMessage: self._on_rank_paused,
            DebugCommand: self._on_debug,
            KeepFailures: self._on_debug,
            BreakIn: self._on_debug,
            SetBridge: self._on_debug,
            BridgeBytes: self._on_debug,
        }

    def _on_read_metrics(self, peer: str, message: ReadMetrics, _payload: Payload) -> None:
        self._run.node.send(
            peer, Reply(message.call, message.rank, OK), packed_metrics(self.counted())
        )

    def counted(self) -> Counted:
        """The present metrics of this process. Any thread."""
        now_ns = time.monotonic_ns()
        figures = [*self._run.metrics.figures(now_ns), *TELEMETRY.spans(now_ns)]
        return Counted(tuple(figures), tuple(TELEMETRY.measures()))

    def _on_read_actors(self, peer: str, message: ReadActors, _payload: Payload) -> None:
        living = [cell.snapshot() for cell in list(self._run.cells.values())]
        seen = ActorsSeen((*self._run.tombstones.snapshots(), *living))
        self._run.node.send(peer, Reply(message.call, message.rank, OK), packed_actors(seen))

    def _on_read_calls(self, peer: str, message: ReadCalls, _payload: Payload) -> None:
        parts().read_calls(self._run, peer, message)

    def _on_read_table(self, peer: str, message: ReadTable, _payload: Payload) -> None:
        if peer == AGENT:  # queries go to host agents only, which ask the processes
            self._run.node.send(peer, parts().read_table(self._run, message))

    def _on_set_history(self, peer: str, message: SetHistory, _payload: Payload) -> None:
        if peer == AGENT:
            parts().set_history(message)

    def _on_read_waits(self, peer: str, message: ReadWaits, _payload: Payload) -> None:
        if peer == AGENT:
            waits = parts().endpoint_waits(self._run)
            self._run.node.send(peer, WaitsRead(message.request, waits))

    def _on_set_log_level(self, peer: str, message: SetLogLevel, _payload: Payload) -> None:
        logging.getLogger().setLevel(message.level)
        self._run.node.send(peer, Reply(message.call, message.rank, OK))

    def _on_set_links(self, peer: str, message: SetLinks, _payload: Payload) -> None:
        if self._link_faults is None:
            from monarch._src.actor.inspect.injected_link_faults import LinkFaults  # for tests only

            self._link_faults = LinkFaults(self._run)
        self._link_faults.set(peer, message)

    def _on_rank_paused(self, peer: str, message: RankPausedMessage, _payload: Payload) -> None:
        if peer != AGENT and peer not in self._run.agent.others:
            return
        PAUSES.on_paused(message.mesh, message.rank, message.paused, time.monotonic())
        ref, at = self._run.known.ref(message.mesh), message.at
        if ref is None or not bus.wanted(RankPaused):
            return
        point = dict(ref.extent.point_of_rank(message.rank))
        event = RankPaused(
            f"{ref.uid:x}", ref.name, message.rank, point, message.session, message.paused
        )
        if at is not None:
            endpoint = endpoint_text(at.actor_class, at.endpoint)
            event = msgspec.structs.replace(
                event, endpoint=endpoint, function=at.function, filename=at.filename, line=at.line,
                why=at.why,
            )  # fmt: skip
        bus.emit(event)

    def _on_debug(
        self,
        peer: str,
        message: DebugCommand | KeepFailures | BreakIn | SetBridge | BridgeBytes,
        _payload: Payload,
    ) -> None:
        # Consoles send to host agents only, see `debug`.
        if peer == AGENT and self._run.proc_ref is not None:
            parts().debug(self._run, message)
