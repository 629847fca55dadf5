"""What an actor of this process is and has at this moment.

Runs in: a proc, on the thread that receives, beside the code of the actor: nothing of its own runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from monarch._src.actor.inspect.safe_repr import (
    attributes_of,
    class_attribute,
    class_text,
    items_of,
    live_text,
)
from monarch._src.wire.actor_snapshot_codec import SeenActor

if TYPE_CHECKING:
    from monarch._src.actor.run.cell import ActorCell

MOST = 48
"""Attributes of an actor that are told."""
NAMESPACE = "__live_namespace__"
"""A class may name one attribute, a dict, whose items stand for the attributes of its actors."""


def snapshot_of(cell: ActorCell) -> SeenActor:
    """That actor."""
    actor: object = cell.instance_object
    running = tuple(call.endpoint for _, call, _ in list(cell.running_calls.calls.values()))
    told, more = ((), 0) if actor is None else _attributes(actor)
    return SeenActor(
        name=cell.spec.name,
        class_name=cell.spec.class_name if actor is None else class_text(type(actor)),
        running=running if actor is not None or cell.dead is not None else ("__init__",),
        queued=cell.mailbox.queued_calls(),
        attributes=told,
        more=more,
        ended=cell.dead is not None,
    )


def _attributes(actor: object) -> tuple[tuple[tuple[str, str], ...], int]:
    shown = attributes_of(actor)
    inside = class_attribute(type(actor), NAMESPACE)
    if inside is not None:
        namespace = next((value for name, value in items_of(shown) if name == inside), None)
        shown = cast("dict[str, object]", namespace) if type(namespace) is dict else {}
    # The list is made in one step of the interpreter: the program may change it meanwhile.
    items = [
        (name, value)
        for name, value in list(items_of(shown))
        if type(name) is str and not name.startswith("__")
    ]
    told = tuple((name, live_text(value)) for name, value in items[:MOST])
    return told, len(items) - len(told)
