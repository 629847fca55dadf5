"""The labels of dims: checked, and as errors list them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable


def dims_text(labels: Iterable[str]) -> str:
    """The dims, as errors list them: ``dims hosts, gpus``."""
    text = ", ".join(labels)
    return f"dims {text}" if text else "no dims"


def checked_labels(what: str, labels: Iterable[str]) -> tuple[str, ...]:
    """The labels as a tuple, checked.

    TypeError if they are one string or are not all strings; ValueError if one is empty or repeats.
    """
    if isinstance(labels, str):
        raise TypeError(
            f"{what}: labels is the string {labels!r}; give a sequence, as [{labels!r}]"
        )
    checked = tuple(labels)
    seen: set[str] = set()
    for label in checked:
        if not isinstance(label, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' input
            raise TypeError(
                f"{what}: label {label!r} is a {type(label).__name__}; labels are strings"
            )
        if not label:
            raise ValueError(f"{what}: a label is empty; give every dim a name")
        if label in seen:
            raise ValueError(f"{what}: dim {label!r} appears twice; give every dim its own name")
        seen.add(label)
    return checked
