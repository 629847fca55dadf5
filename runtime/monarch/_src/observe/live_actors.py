"""What the actors of one rank are and have: classes, live attributes, what waits in their queues.

Runs in: any process, mostly the client; any thread but the one that handles messages. The rank
answers itself, on the thread that receives and without user code, so also while it computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from monarch._src.actor.inspect.ask_procs import ProcQuery, ask_procs
from monarch._src.mesh.proc_mesh import ProcMesh
from monarch._src.wire.actor_snapshot_codec import SeenActor, unpacked
from monarch._src.wire.messages import ReadActors
from monarch._src.wire.msgpack_text import UNREADABLE


@dataclass(frozen=True)
class LiveActor:
    """One actor of a rank, as it was when it was looked at.

    Attributes:
        name: given at spawn.
        class_name: `package.module.Trainer`; of a notebook or script, `Trainer`.
        running: endpoints that are under way, oldest first.
        queued: calls that have arrived and not begun.
        attributes: names of its attributes, with a short text of each. No code of their classes
            runs for it; of arrays and tensors it tells kind and shape.
        more: attributes that are not told.
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

    Of one that is not up yet there are none.

    Raises:
        ValueError: the slice is of several ranks. MeshStoppedError: its mesh has been stopped.
        LookupError: its process is gone, or has answered what cannot be read.
        TimeoutError: it did not answer in `timeout` seconds: something in it holds the global
            interpreter lock, or it stands still.
    """
    rank._check_usable()  # pyright: ignore[reportPrivateUsage]
    if len(rank) != 1:
        raise ValueError(f"{rank.name} is of {len(rank)} ranks here; slice one of them")
    procs, region = rank._procs, rank._region  # pyright: ignore[reportPrivateUsage]
    asked = ProcQuery(ReadActors, procs.ref, region, procs.ready if procs.owned else None)
    ask_procs(rank._runtime, [asked], timeout)  # pyright: ignore[reportPrivateUsage]
    for why in asked.failures.values():
        raise LookupError(f"its process is gone: {why}")
    for payload in asked.answers.values():
        try:
            return [_live(seen) for seen in unpacked(payload).actors] if payload.body else []
        except UNREADABLE as error:
            raise LookupError(f"its answer could not be understood: {error}") from None
    raise TimeoutError(
        f"it did not answer within {timeout:g} s: something in it holds the interpreter's lock, "
        "or its process stands still; its stack says what"
    )


def _live(seen: SeenActor) -> LiveActor:
    return LiveActor(
        seen.name, seen.class_name, seen.running, seen.queued, seen.attributes, seen.more,
        seen.ended,
    )  # fmt: skip
