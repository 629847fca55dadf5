"""Checks of names and reasons that users pass, and of meshes that they end.

A message that holds another type is dropped.

No I/O.
"""

from __future__ import annotations


def name_text(what: str, name: object) -> str:
    """The name; TypeError if it is no text. `what` says what it names: "a controller"."""
    if isinstance(name, str):
        return name
    raise TypeError(f"the name of {what} is text, not {name!r}")


def reason_text(reason: object, default: str) -> str:
    """The reason, or `default` for None; TypeError if it is neither text nor None."""
    if reason is None:
        return default
    if isinstance(reason, str):
        return reason
    raise TypeError(f"reason={reason!r}: give text, or None")


def check_may_end(verb: str, name: str, *, owned: bool, whole: bool) -> None:
    """Raise ValueError unless this process may end a mesh. `verb`: "stop" or "kill"."""
    if not owned:
        raise ValueError(f"{name!r} was spawned elsewhere; only its owner may {verb} it")
    if not whole:
        raise ValueError(f"{verb} the whole mesh {name!r}, not a slice of it")
