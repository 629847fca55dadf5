"""References: the names of nodes in the admin API. No I/O.

    root
    host:SESSION
    proc:SESSION:MESH:RANK
    actor:SESSION:MESH:RANK:ACTOR

SESSION is a name as in `monarch ps`, since each host agent has a session directory of its own, or
the site of a host of another machine. MESH and
ACTOR are the uids of a proc mesh and an actor mesh, as hexadecimal digits. RANK is the rank in the
proc mesh. No part has a sign that a URL would have to escape.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Kind = Literal["root", "host", "proc", "actor"]
LONGEST = 200

_SESSION = r"(?P<session>[A-Za-z0-9_.\-]{1,100})"
_PLACE = rf"{_SESSION}:(?P<mesh>[0-9a-f]{{1,16}}):(?P<rank>[0-9]{{1,9}})"
_PATTERNS: dict[Kind, re.Pattern[str]] = {
    "root": re.compile(r"root"),
    "host": re.compile(rf"host:{_SESSION}"),
    "proc": re.compile(rf"proc:{_PLACE}"),
    "actor": re.compile(rf"actor:{_PLACE}:(?P<actor>[0-9a-f]{{1,16}})"),
}
_FORMS = "root, host:SESSION, proc:SESSION:MESH:RANK or actor:SESSION:MESH:RANK:ACTOR"


class Reference(NamedTuple):
    """The name of one node. Fields that its kind does not have are empty or 0."""

    kind: Kind
    session: str = ""
    mesh: int = 0
    rank: int = 0
    actor: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "root":
                return "root"
            case "host":
                return f"host:{self.session}"
            case "proc":
                return f"proc:{self.session}:{self.mesh:x}:{self.rank}"
            case "actor":
                return f"actor:{self.session}:{self.mesh:x}:{self.rank}:{self.actor:x}"

    @property
    def parent(self) -> Reference | None:
        """The node that has this one as a child; None for the root."""
        match self.kind:
            case "root":
                return None
            case "host":
                return ROOT
            case "proc":
                return Reference("host", self.session)
            case "actor":
                return Reference("proc", self.session, self.mesh, self.rank)


ROOT = Reference("root")


class BadReferenceError(ValueError):
    """The text is no reference."""


def parse(text: str) -> Reference:
    """The reference that this text is, without percent-encoding.

    Raises:
        BadReferenceError: it has none of the four forms.
    """
    if len(text) <= LONGEST:
        for kind, pattern in _PATTERNS.items():
            match = pattern.fullmatch(text)
            if match is not None:
                found = match.groupdict()
                return Reference(
                    kind, found.get("session") or "", int(found.get("mesh") or "0", 16),
                    int(found.get("rank") or 0), int(found.get("actor") or "0", 16),
                )  # fmt: skip
    raise BadReferenceError(f"{shortened(text)!r} is no reference; a reference is {_FORMS}")


def parse_proc(text: str) -> Reference:
    """The reference of a proc.

    Raises:
        BadReferenceError: it is no reference, or that of another kind of node.
    """
    found = parse(text)
    if found.kind != "proc":
        raise BadReferenceError(f"{text!r} is a {found.kind}; give a proc: proc:SESSION:MESH:RANK")
    return found


def shortened(text: str, most: int = 80) -> str:
    """At most that many characters of a text that a stranger may have written."""
    return text if len(text) <= most else text[: most - 3] + "..."
