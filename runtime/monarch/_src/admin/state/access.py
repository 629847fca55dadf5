"""Roles, and the tokens that prove them. No I/O.

An observer reads. An owner also acts: stops sessions and kills procs. A token is compared in
constant time, so that a stranger learns nothing from the time that a refusal takes.
"""

from __future__ import annotations

import enum
import hmac
from dataclasses import dataclass

SCHEME = "bearer"
LONGEST = 512


class AdminRole(enum.IntEnum):
    """The roles, each with the rights of those before it."""

    STRANGER = 0
    OBSERVER = 1
    OWNER = 2


@dataclass(frozen=True, repr=False)
class Tokens:
    """The secrets of one server. They have no `repr`."""

    observer: str
    owner: str

    def role_of(self, authorization: str | None, without: AdminRole) -> AdminRole:
        """The role that a header `Authorization` proves; `without` is the role without a header."""
        if authorization is None:
            return without
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")[:LONGEST]
        # Both tokens are compared, also if the first is equal.
        owner = hmac.compare_digest(given, self.owner.encode())
        observer = hmac.compare_digest(given, self.observer.encode())
        if scheme.lower() != SCHEME:
            return AdminRole.STRANGER
        if owner:
            return AdminRole.OWNER
        return AdminRole.OBSERVER if observer else AdminRole.STRANGER
