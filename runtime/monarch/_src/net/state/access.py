"""Access control: permitted keys, permitted messages by role, and safe listeners. No I/O.

A job has key pairs of three roles. All and only the public keys in its allow-list may connect. A
*worker* serves a host, and dials other workers of its job. An *owner* may do everything that a
client does, which includes running any code. An *observer* may only request the snapshots that
`monarch ps` shows; its messages are never unpickled.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping

from monarch._src.net.state.addresses import Address, Listening, is_beyond_this_host
from monarch._src.wire.ids import OBSERVER
from monarch._src.wire.messages import Hello, Message, Snapshot

TRUST_ALL = "trust_all_connections"
KEY_LENGTH = 40  # of a public or secret key, as Z85 text


class Role(enum.Enum):
    """The role of a key pair in its job."""

    WORKER = "worker"
    OWNER = "owner"
    OBSERVER = "observer"


# None: every message. A role that may send a message with a payload may run code.
MAY_SAY: dict[Role, frozenset[type[Message]] | None] = {
    Role.WORKER: None,
    Role.OWNER: None,
    Role.OBSERVER: frozenset({Hello, Snapshot}),
}


def may_say(role: Role, kind: type[Message]) -> bool:
    """Whether that role may send a message of that kind."""
    allowed = MAY_SAY[role]
    return allowed is None or kind in allowed


class AllowList:
    """The public keys of one job, each with its role. Immutable."""

    def __init__(self, job: str, keys: Mapping[Role, Iterable[str]]) -> None:
        """Keys are Z85 text. ValueError if a key is malformed, or has two roles."""
        self.job = job
        self._roles: dict[str, Role] = {}
        for role, publics in keys.items():
            for public in publics:
                if len(public) != KEY_LENGTH:
                    raise ValueError(f"{public!r} is not a public key of {KEY_LENGTH} characters")
                if self._roles.setdefault(public, role) is not role:
                    both = f"{self._roles[public].value} and {role.value}"
                    raise ValueError(f"key {fingerprint(public)} is listed twice, as {both}")

    def role_of(self, public: str) -> Role | None:
        """The role of that key; None if it may not connect."""
        return self._roles.get(public)

    def of(self, role: Role) -> list[str]:
        """The public keys of that role, in the order of the list."""
        return [public for public, found in self._roles.items() if found is role]


def fingerprint(public: str) -> str:
    """The short form of a key in logs and tables: 16 hexadecimal digits of its hash."""
    return hashlib.sha256(public.encode()).hexdigest()[:16]


def check_listener(
    listening: Listening, resolved: Iterable[str] = (), *, has_keys: bool, trusts_all: bool = False
) -> None:
    """Refuse to listen where strangers could connect without a key.

    Args:
        resolved: the addresses that the name in `listening.bind` resolves to on this host.
        has_keys: peers must authenticate. `trusts_all`: the user has waived authentication.

    Raises:
        ValueError: keys are given, and authentication is waived.
        PermissionError: a listener beyond loopback has no keys; or one on loopback has no keys, and
            the user has not said that every user of this host may connect.
    """
    bind = listening.bind
    if has_keys and trusts_all:
        raise ValueError(f"{TRUST_ALL!r} and keys were given; give the keys alone")
    if has_keys or bind.transport == "ipc":
        return
    beyond = is_beyond_this_host(bind, resolved)
    if beyond:
        raise PermissionError(
            f"refused to listen at {bind} without keys: other hosts could connect and run any "
            f"code here. Make keys with `{MAKE_KEYS}` and give their "
            f"directory; or listen at {_on_loopback(bind)}"
        )
    if not trusts_all:
        raise PermissionError(
            f"refused to listen at {bind} without keys: every user of this host could connect. "
            f"Make keys with `{MAKE_KEYS}` and give their directory; or say "
            f"ca={TRUST_ALL!r} if that is meant"
        )


MAKE_KEYS = "monarch keys make ~/.monarch/keys"


def _on_loopback(bind: Address) -> Address:
    return Address("tcp", "::1" if bind.is_v6 else "127.0.0.1", bind.port)


# --- names of nodes -------------------------------------------------------------------------------

MOST_NAMES = 1 << 16
LONGEST_NAME = 128


def is_name(name: str) -> bool:
    """Whether a node of another host may have that name."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()


class Names:
    """The owners of node names: a name belongs to the first key that has used it."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}  # by name, the fingerprint

    def refused(self, name: str, role: Role, mark: str) -> str:
        """The reason why the holder of that key may not use the name; empty if it may."""
        if not is_name(name):
            return "that is not a valid name of a node"
        if name.startswith(OBSERVER) != (role is Role.OBSERVER):
            return "only observers have names with this prefix"
        if self._keys.get(name, mark) != mark:
            return "that name belongs to another key"
        if name not in self._keys and len(self._keys) >= MOST_NAMES:
            return "there are too many nodes"
        return ""

    def give(self, name: str, mark: str) -> None:
        """Assign the name to that key."""
        self._keys[name] = mark
