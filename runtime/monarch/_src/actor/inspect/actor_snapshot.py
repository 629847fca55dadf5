"""Snapshots of actors: their class, calls and attributes.

Runs in: a proc, on the receiving thread, beside the code of the actor. A snapshot runs no
user code, and of this package only `SUMMARY`.
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
from monarch._src.failures.endpoint_text import is_label
from monarch._src.wire.process_codec import SeenActor

if TYPE_CHECKING:
    from monarch._src.actor.run.cell_protocol import Cell

MOST = 48
"""The maximal number of attributes in a snapshot."""
NAMESPACE = "__live_namespace__"
"""A class may name a dict attribute, whose items are shown in place of the attributes."""
SUMMARY = "__live_summary__"
"""A class of this package may name a method, whose texts by name are shown in that place."""
PACKAGE = "monarch._src."


def snapshot_of(cell: Cell, running: tuple[str, ...]) -> SeenActor:
    """The snapshot of an actor; `running` are its endpoints that run."""
    actor: object = cell.instance_object
    shown, more = ((), 0) if actor is None else _attributes(actor)
    label = cell.spec.class_name
    return SeenActor(
        name=cell.spec.name,
        class_name=label if actor is None or is_label(label) else class_text(type(actor)),
        running=running if actor is not None or cell.dead is not None else ("__init__",),
        queued=cell.mailbox.queued_calls(),
        attributes=shown,
        more=more,
        ended=cell.dead is not None,
    )


def _attributes(actor: object) -> tuple[tuple[tuple[str, str], ...], int]:
    summary = class_attribute(type(actor), SUMMARY)
    if type(summary) is str and type(actor).__module__.startswith(PACKAGE):
        texts: dict[str, str] = getattr(actor, summary)()
        return tuple(texts.items())[:MOST], max(0, len(texts) - MOST)
    shown = attributes_of(actor)
    inside = class_attribute(type(actor), NAMESPACE)
    if inside is not None:
        namespace = next((value for name, value in items_of(shown) if name == inside), None)
        shown = cast("dict[str, object]", namespace) if type(namespace) is dict else {}
    # `list` copies the items atomically; the program may change them at any time.
    items = [
        (name, value)
        for name, value in list(items_of(shown))
        if type(name) is str and not name.startswith("__")
    ]
    found = tuple((name, live_text(value)) for name, value in items[:MOST])
    return found, len(items) - len(found)
