"""Records of actors that have ended, with which their later calls are answered.

Runs in: a proc, or a client that hosts controllers, on the receiving thread; an actor's own thread
adds its record.
Invariants: a uid is in `Tombstones` or among the runtime's cells, and for a moment in both. A
record does not refer to the actor's class, arguments or messages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from monarch._src.actor.errors.remote import pack_failure
from monarch._src.actor.supervise.ownership import Supervisor, ended_supervisor
from monarch._src.failures.report import FailureKind, RankFailure
from monarch._src.wire.frames import NO_PAYLOAD, Payload
from monarch._src.wire.messages import DIED, OK, Call, SpawnActor, StopActor
from monarch._src.wire.process_codec import SeenActor

if TYPE_CHECKING:
    from monarch._src.actor.deliver.routes import Routes
    from monarch._src.actor.deliver.undeliverable import UndeliverableMessages
    from monarch._src.actor.parts import RuntimeHooks

SHOWN = 64
"""How many of the actors that ended last appear in snapshots."""

WHOLE = 128
"""How many of the last failures are kept whole, with their frames and causes."""
LONGEST_TEXT = 80  # characters of the message of an older failure


class _Brief(msgspec.Struct, frozen=True, gc=False):
    """The summary of an older failure."""

    kind: FailureKind
    endpoint: str | None
    message: str


# The names of the actor, of its proc mesh and of its class; its rank, and its coordinates.
_Place: TypeAlias = "tuple[str, str, str, int, tuple[tuple[str, int], ...]]"


class TombstoneRuntime(Protocol):
    """The parts of a process's runtime that answer for an actor that has ended."""

    name: str
    host: str
    routes: Routes
    undeliverable: UndeliverableMessages
    hooks: RuntimeHooks


class Tombstones:
    """The records of one process, by the uid of the actor, oldest first."""

    def __init__(self, runtime: TombstoneRuntime) -> None:
        self._runtime = runtime
        # With each, the reason of its stop, or its failure.
        self._entries: dict[int, tuple[_Place, str | RankFailure | _Brief]] = {}
        self._failed: dict[int, None] = {}  # those with a whole failure, oldest first
        self._places: dict[_Place, _Place] = {}  # interns equal places

    def __contains__(self, uid: object) -> bool:
        return uid in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def _add_failed(self, uid: int, place: _Place, failure: RankFailure) -> None:
        """Add a whole failure, and summarize the oldest one if there are too many."""
        self._failed[uid] = None
        if len(self._failed) > WHOLE:
            oldest = next(iter(self._failed))
            del self._failed[oldest]
            place_of_oldest, why = self._entries[oldest]
            if isinstance(why, RankFailure):
                self._entries[oldest] = (
                    place_of_oldest,
                    _Brief(why.kind, why.endpoint, _text_of(why)),
                )
        self._entries[uid] = place, failure

    def add(self, spec: SpawnActor, dead: RankFailure) -> None:
        """Record an actor of that spec, which has ended for that reason."""
        place = (
            spec.name, dead.mesh_name, spec.class_name, dead.rank, tuple(dead.point.items())
        )  # fmt: skip
        place = self._places.setdefault(place, place)
        if dead.kind == "stopped":
            self._entries[spec.actor] = place, sys.intern(dead.message)
        else:
            self._add_failed(spec.actor, place, dead)

    def forget(self, uid: int) -> None:
        """Remove the record: a controller of the same uid is spawned again."""
        self._entries.pop(uid, None)
        self._failed.pop(uid, None)

    def post(self, peer: str, message: Call | StopActor, payload: Payload) -> None:
        """Answer a message to an actor that has ended."""
        run = self._runtime
        if isinstance(message, StopActor):
            run.routes.reply(peer, message, OK, NO_PAYLOAD)
            return
        why = self._why(message.actor)
        if not message.call:
            to = f"{run.name}/{self._entries[message.actor][0][0]}#{message.actor:x}"
            run.undeliverable.return_to_sender(peer, message, to, why)
        elif not run.hooks.program.ends_process(why):  # else callers receive that end
            run.routes.reply(peer, message, DIED, pack_failure(why, None))

    def supervisor_of(self, uid: int) -> Supervisor | None:
        """The supervisor for code that an ended actor left running; it can own no mesh."""
        return ended_supervisor(self._why(uid).message) if uid in self._entries else None

    def snapshots(self) -> Iterator[SeenActor]:
        """The last actors that have ended, oldest first."""
        stones = list(self._entries.values())
        for (name, _, class_name, _, _), _ in islice(stones, max(0, len(stones) - SHOWN), None):
            yield SeenActor(name, class_name, (), 0, (), ended=True)

    def _why(self, uid: int) -> RankFailure:
        (_, mesh_name, class_name, rank, point), why = self._entries[uid]
        if isinstance(why, RankFailure):
            return why
        brief = _Brief("stopped", None, why) if isinstance(why, str) else why
        return RankFailure(
            mesh_name, rank, dict(point), class_name, brief.endpoint, self._runtime.host,
            os.getpid(), brief.kind, "", brief.message,
        )  # fmt: skip


def _text_of(failure: RankFailure) -> str:
    text = ": ".join(filter(None, (failure.exception_type, failure.message)))
    return sys.intern(text[:LONGEST_TEXT])
