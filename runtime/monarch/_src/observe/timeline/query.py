"""The last calls of the ranks of a mesh, each with its times.

Runs in: any process, mostly the client; any thread but the one that handles messages. Ranks answer
on their receiving threads, without user code, so they answer while they compute. A rank records
from the first request until a minute after the last one. Without requests it records nothing, and
its calls cost no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf

from monarch._src.actor.inspect.ask_procs import ProcQuery, ask_procs
from monarch._src.mesh.meshes import ProcMesh, shared_procs
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import ReadCalls
from monarch._src.wire.msgpack_text import UNREADABLE
from monarch._src.wire.process_codec import unpacked_calls

MOST_CALLS = 20_000
"""Calls in one answer, of all ranks together."""


@dataclass(frozen=True)
class CallRecord:
    """One call of an endpoint, as the rank ran it.

    Attributes:
        rank: of the proc mesh.
        actor, endpoint: the class of the actor, and the endpoint; the class is empty for work that
            is no call, such as a bootstrap function.
        began_s: seconds since 1970, by the clock of the rank's host.
        took_s: seconds until it returned or raised; None while it runs.
        failed: it raised.
    """

    rank: int
    actor: str
    endpoint: str
    began_s: float
    took_s: float | None
    failed: bool


@dataclass(frozen=True)
class Timeline:
    """Calls of the ranks of one mesh, by rank, each rank's in the order of their ends.

    `cut` lists the ranks that had more calls than an answer holds, and `missing` those that did not
    answer, with the reason.
    """

    calls: tuple[CallRecord, ...]
    cut: tuple[int, ...]
    missing: dict[int, str]


def timeline(mesh: ProcMesh, after_s: float = 0.0, timeout: float = 1.0) -> Timeline:
    """The last calls that the ranks of a proc mesh have run, and those that they run now.

    The first request starts the recording, so its answer has the running calls alone. Ask again
    within a minute, with `after_s` for the calls that ended later.

    Args:
        mesh: the proc mesh, or a slice.
        after_s: leave out calls that ended before, in seconds since 1970.
        timeout: seconds to wait for ranks.

    Raises:
        MeshStoppedError: `mesh` has been stopped.
        ValueError: a negative, infinite or NaN time.
    """
    for name, seconds in (("after_s", after_s), ("timeout", timeout)):
        if not 0 <= seconds < inf:  # NaN is neither
            raise ValueError(f"{name}={seconds}: give seconds, at least 0 and finite")
    mesh._check_usable()  # pyright: ignore[reportPrivateUsage]
    procs, region = shared_procs(mesh), mesh._region  # pyright: ignore[reportPrivateUsage]
    most = max(20, MOST_CALLS // max(1, len(region)))
    question = partial(_question, int(after_s * 1e9), most)
    query = ProcQuery(question, procs.ref, region, procs.ready if procs.owned else None)
    ask_procs(mesh._runtime, [query], timeout)  # pyright: ignore[reportPrivateUsage]
    found: list[CallRecord] = []
    cut: list[int] = []
    missing = dict(query.failures)
    for rank, payload in sorted(query.answers.items()):
        try:
            is_cut = _add(rank, payload, found)
        except UNREADABLE as error:
            missing[rank] = f"its answer could not be read: {error}"
            continue
        if is_cut:
            cut.append(rank)
    for rank in region.ranks():
        if rank not in query.answers:
            missing.setdefault(rank, f"no answer within {timeout:g} s")
    return Timeline(tuple(found), tuple(cut), missing)


def _question(after_ns: int, most: int, call: int, position: int) -> ReadCalls:
    return ReadCalls(call, position, after_ns, most)


def _add(rank: int, payload: Payload, found: list[CallRecord]) -> bool:
    """Add the calls in that answer; returns whether it is cut. A rank that is not up has none."""
    if not payload.body:
        return False
    recorded = unpacked_calls(payload)
    for one in recorded.calls:
        actor, endpoint = recorded.names[one.name]
        took_s = None if one.took_ns is None else one.took_ns / 1e9
        found.append(CallRecord(rank, actor, endpoint, one.began_ns / 1e9, took_s, one.failed))
    return recorded.is_cut
