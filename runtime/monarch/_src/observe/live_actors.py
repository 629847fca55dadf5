"""The actors of one rank: their classes, live attributes and queued calls.

Runs in: any process, mostly the client; any thread but the one that handles messages. The rank
answers on its receiving thread, without user code, so it answers while it computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monarch._src.actor.inspect.ask_procs import ProcQuery, ask_procs
from monarch._src.failures.endpoint_text import is_label
from monarch._src.mesh.meshes import ProcMesh, shared_procs
from monarch._src.wire.messages import ReadActors
from monarch._src.wire.msgpack_text import UNREADABLE
from monarch._src.wire.process_codec import SeenActor, unpacked_actors


@dataclass(frozen=True)
class LiveActor:
    """One actor of a rank, as it was when it was inspected.

    Attributes:
        name: given at spawn.
        class_name: `package.module.Trainer`; of a notebook or script, `Trainer`.
        running: endpoints that are running, oldest first.
        queued: calls that have arrived and not begun.
        attributes: names of its attributes, each with a short text. No code of their classes runs
            for it; arrays and tensors are shown by kind and shape.
        more: the number of attributes that are left out.
        ended: it has failed, or was stopped.
    """

    name: str
    class_name: str
    running: tuple[str, ...]
    queued: int
    attributes: tuple[tuple[str, str], ...]
    more: int = 0
    ended: bool = False


def live_actors(rank: ProcMesh, timeout: float = 1.0) -> list[LiveActor]:
    """The actors of one rank, a slice of a proc mesh, in the order in which they were spawned.

    A rank that is not ready has none. Ended actors of the runtime, as each `push` leaves one, are
    left out.

    Raises:
        ValueError: the slice has several ranks. MeshStoppedError: its mesh has been stopped.
        LookupError: its process has ended, or its answer cannot be read.
        TimeoutError: the rank did not answer in `timeout` seconds: a thread of it holds the global
            interpreter lock, or the process is stopped.
    """
    rank._check_usable()  # pyright: ignore[reportPrivateUsage]
    if len(rank) != 1:
        raise ValueError(f"{rank.name} has {len(rank)} ranks here; slice one of them")
    procs, region = shared_procs(rank), rank._region  # pyright: ignore[reportPrivateUsage]
    query = ProcQuery(ReadActors, procs.ref, region, procs.ready if procs.owned else None)
    ask_procs(rank._runtime, [query], timeout)  # pyright: ignore[reportPrivateUsage]
    for why in query.failures.values():
        raise LookupError(f"its process is gone: {why}")
    for payload in query.answers.values():
        try:
            return _of_interest(unpacked_actors(payload).actors) if payload.body else []
        except UNREADABLE as error:
            raise LookupError(f"its answer could not be read: {error}") from None
    raise TimeoutError(
        f"it did not answer within {timeout:g} s: a thread of it holds the interpreter's lock, or "
        "its process is stopped; its stack shows which"
    )


def _of_interest(found: Iterable[SeenActor]) -> list[LiveActor]:
    return [_live(seen) for seen in found if not (seen.ended and is_label(seen.class_name))]


def _live(seen: SeenActor) -> LiveActor:
    return LiveActor(
        seen.name, seen.class_name, seen.running, seen.queued, seen.attributes, seen.more,
        seen.ended,
    )  # fmt: skip
