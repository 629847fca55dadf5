"""The text for an endpoint: `Trainer.step`, or `the map` for work of the runtime itself. No I/O.

Actors of the runtime and of the notebook have a label in place of the name of their class, so that
errors, stacks and tables use the term that the user knows. A label has a space. No class is named
so, and a user's own class `Map` is not mistaken for the runtime's.
"""

from __future__ import annotations


def is_label(actor_class: str) -> bool:
    """Whether this stands for an actor of the runtime, and not for a class of the user."""
    return " " in actor_class


OF_TRAINING = frozenset(
    ("elastic_look", "elastic_report", "elastic_load_checkpoint", "elastic_offer", "elastic_take",
     "elastic_run")
)  # fmt: skip
"""Methods of `ElasticActor` that an `ElasticMesh` calls around the endpoint of the user."""


def endpoint_text(actor_class: str, endpoint: str | None) -> str:
    """`Trainer.step`; the label of an actor of the runtime; `the training of Trainer`.

    Args:
        actor_class: empty if the work is that of no actor; the endpoint then stands alone.
        endpoint: empty or None if it is not known; the class then stands alone.
    """
    if not actor_class:
        return endpoint or ""
    if endpoint in OF_TRAINING and not is_label(actor_class):
        return f"the training of {actor_class}"
    return f"{actor_class}.{endpoint}" if endpoint and not is_label(actor_class) else actor_class
