"""Answers to requests of a page: actors of a rank, calls that ranks have run, sessions. No I/O.

The page's side is `widgets/js/protocol.js`, type `LiveActor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from monarch.observe import LiveActor


from monarch.frontend import endpoint_text
from monarch.observe import Timeline
from monarch.session import SessionInfo


class ActorMessage(TypedDict):
    """One actor, see `LiveActor`."""

    name: str
    class_name: str
    running: list[str]
    queued: int
    attributes: list[list[str]]
    more: int
    ended: bool


class ActorsMessage(TypedDict):
    """The actors of one rank."""

    actors: list[ActorMessage]


def actors_message(actors: Sequence[LiveActor]) -> ActorsMessage:
    """The actors as a message."""
    return ActorsMessage(
        actors=[
            ActorMessage(
                name=one.name,
                class_name=one.class_name,
                running=[*one.running],
                queued=one.queued,
                attributes=[[name, text] for name, text in one.attributes],
                more=one.more,
                ended=one.ended,
            )
            for one in actors
        ]
    )


class TimelineMessage(TypedDict):
    """Calls of the ranks of a mesh.

    `names`: endpoints with the classes of their actors. Each of `calls` is a rank, the place of a
    name, when it began (seconds since 1970), how many seconds it took (None while it runs), and
    whether it failed. `cut`: how many ranks had more calls than this; `missing` did not answer.
    """

    now: float
    names: list[str]
    calls: list[tuple[int, int, float, float | None, bool]]
    cut: int
    missing: int


def timeline_message(found: Timeline, now: float) -> TimelineMessage:
    """A timeline as a message, read at `now`, in seconds since 1970."""
    names: dict[str, int] = {}
    calls: list[tuple[int, int, float, float | None, bool]] = []
    for one in found.calls:
        name = endpoint_text(one.actor, one.endpoint)
        took_s = None if one.took_s is None else round(one.took_s, 6)
        place = names.setdefault(name, len(names))
        calls.append((one.rank, place, round(one.began_s, 6), took_s, one.failed))
    return TimelineMessage(
        now=now, names=list(names), calls=calls, cut=len(found.cut), missing=len(found.missing)
    )


class SessionMessage(TypedDict):
    """One session, see `SessionInfo`; `age_s` in seconds.

    `notebook`: the path of the notebook whose kernel is its client, where the server knows it.
    """

    session: str
    state: str
    kept_as: str | None
    age_s: float
    agent_pid: int | None
    client_pid: int | None
    program: str | None
    meshes: list[str]
    left: str | None
    notebook: str | None


def session_message(one: SessionInfo, notebook: str | None = None) -> SessionMessage:
    """A session as a message."""
    return SessionMessage(
        session=one.session,
        state=one.state,
        kept_as=one.kept_as,
        age_s=round(one.age_s, 1),
        agent_pid=one.agent_pid,
        client_pid=one.client_pid,
        program=one.program,
        meshes=[*one.meshes],
        left=one.left,
        notebook=notebook,
    )
