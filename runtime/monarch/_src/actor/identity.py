"""Identities that programs may store, compare and send: `Uid` and `ProcId`. No I/O."""

from __future__ import annotations

import os
import re

import msgspec

# The text form of a Uid.
_TEXT = r"(?P<label>[A-Za-z0-9_.-]+)?(?:<(?P<value>[0-9a-f]{1,16})>)?\Z"
_LARGEST = (1 << 64) - 1  # the largest number of a Uid


class Uid(msgspec.Struct, frozen=True, eq=False):
    """A unique identity: a number of 64 bits, or a unique name.

    An *instance* has a number, and may have a label for readers: uids with equal numbers are equal
    whatever their labels. A *singleton* has no number; its label is its name. The text form is
    `label<number in hexadecimal>`, `<number>` or `label`.
    """

    label: str | None = None
    instance_value: int | None = None

    def __post_init__(self) -> None:
        value = self.instance_value
        if value is not None and not 0 <= value <= _LARGEST:
            raise ValueError(f"the number of a uid has 64 bits; {value} has not")
        if value is None and not self.label:
            raise ValueError("a uid has a number, or a name, or both")
        if self.label is not None and not _is_label(self.label):
            raise ValueError(f"{self.label!r} is no label: letters, digits and -_. only")

    @staticmethod
    def anonymous() -> Uid:
        """A new instance without a label."""
        return Uid.instance()

    @staticmethod
    def instance(label: str | None = None) -> Uid:
        """A new instance with a random number."""
        return Uid(label, int.from_bytes(os.urandom(8), "big"))

    @staticmethod
    def instance_from_value(value: int, label: str | None = None) -> Uid:
        """The instance with that number. ValueError if the number does not fit 64 bits."""
        return Uid(label, value)

    @staticmethod
    def from_string(uid: str) -> Uid:
        """Parse the text form. ValueError for other text."""
        found = re.match(_TEXT, uid)
        if found is None or not uid:
            raise ValueError(f"{uid!r} is no uid; it should look like label<1f0c> or label")
        value = found["value"]
        return Uid(found["label"], None if value is None else int(value, 16))

    @property
    def is_instance(self) -> bool:
        """Whether it has a number."""
        return self.instance_value is not None

    @property
    def is_singleton(self) -> bool:
        """Whether it has a name and no number."""
        return self.instance_value is None

    def _key(self) -> int | str | None:
        return self.label if self.instance_value is None else self.instance_value

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Uid) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        value = "" if self.instance_value is None else f"<{self.instance_value:x}>"
        return f"{self.label or ''}{value}"


class ProcId(msgspec.Struct, frozen=True):
    """The identity of a process, as in `ProcId.from_string(context().actor_instance.proc_id)`."""

    uid: Uid

    @staticmethod
    def from_string(proc_id: str) -> ProcId:
        """Parse the text form. ValueError for other text."""
        return ProcId(Uid.from_string(proc_id))

    @property
    def label(self) -> str | None:
        """The label of its uid."""
        return self.uid.label

    def __str__(self) -> str:
        return str(self.uid)


def _is_label(text: str) -> bool:
    found = re.match(_TEXT, text)
    return found is not None and found["label"] == text
