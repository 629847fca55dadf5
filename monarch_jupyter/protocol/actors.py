"""Messages about the actors of a rank. No I/O.

The page's side is `widgets/js/protocol.js`, type `LiveActor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from monarch.observe import LiveActor


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
