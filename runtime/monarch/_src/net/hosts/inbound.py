"""Inbound links: the nodes that have dialled this process, with names, addresses and keys.

Runs in: any process that listens beyond its host, under the lock of its links. No I/O of its own.
Invariants: a name belongs to the key that first used it. A node has one end here, that of its last
incarnation. A bounded number of ended links is remembered, so that late messages get a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch._src.net.hosts.authenticator import who_sent
from monarch._src.net.hosts.link_ends import LinkEnd
from monarch._src.net.state.access import LONGEST_NAME, Names, Role
from monarch._src.net.state.link import Link
from monarch._src.wire.frames import Buffer, FrameError
from monarch._src.wire.link_protocol import LinkHello, LinkRefused, decode_link, encode_link

REMEMBERED = 1024  # ended links
_HELLO = encode_link(LinkHello("", 0, {}, 0, 0, 0, False))[1:3]  # the array's length, and its tag


class NotHeardError(Exception):
    """A message of a node that has dialled is rejected. `facts` identify it in the audit log.

    `session`: the session of the message, for the refusal; 0 if it has none.
    """

    def __init__(self, why: str, facts: dict[str, str], session: int = 0) -> None:
        super().__init__(why)
        self.facts = facts
        self.session = session

    def refusal(self, by: str) -> bytes:
        """The refusal that the node `by` sends."""
        return encode_link(LinkRefused(self.session, f"{by} does not let it in: {self}"))


class Accepted:
    """The ends of inbound links, in `ends` by the name of the node."""

    def __init__(self, new_link: Callable[[str], Link], *, has_gate: bool) -> None:
        """`has_gate`: an authenticator has accepted each connection, and identifies its peer."""
        self._new_link = new_link
        self._has_gate = has_gate
        self._routes: dict[bytes, LinkEnd] = {}
        self._names = Names()
        self.ends: dict[str, LinkEnd] = {}

    def end_of(self, route: bytes, frames: list[Buffer], part: Any) -> LinkEnd | None:
        """The end of the link with that route; a hello may begin another one.

        None: drop the message. It is of a link of that peer, was queued when an earlier connection
        broke, and comes before the hello of this one.

        Raises:
            NotHeardError: the peer has sent no hello, or may not use the name in it.
        """
        end = self._routes.get(route)
        if end is None or bytes(frames[0][1:3]) == _HELLO:
            try:
                message = decode_link(frames)
            except FrameError as error:
                raise NotHeardError(str(error), self._facts(part)) from None
            if isinstance(message, LinkHello):
                return self._on_hello(route, message, part)
            if end is None and not self._is_left_over(message.session, part):
                raise NotHeardError("it has sent no hello", self._facts(part))
        return end

    def _is_left_over(self, session: int, part: Any) -> bool:
        """Whether a message without a hello is of a link of its sender."""
        mark = who_sent(part)[1] if self._has_gate else ""
        ours = (end for end in self.ends.values() if end.mark == mark)
        return session != 0 and any(end.link.session == session for end in ours)

    def _facts(self, part: Any) -> dict[str, str]:
        """The known identity of the sender of that frame."""
        if not self._has_gate:
            return {}
        role, mark, address = who_sent(part)
        return {"role": role.value, "key": mark, "address": address}

    def _on_hello(self, route: bytes, hello: LinkHello, part: Any) -> LinkEnd:
        """The end of the link that a hello by that route begins or resumes."""
        role, mark, address = who_sent(part) if self._has_gate else (Role.OWNER, "", "")
        name = hello.node
        end = self.ends.get(name)
        is_possible = hello.incarnation > 0 and hello.peer >= 0
        why = self._names.refused(name, role, mark)
        if not is_possible:
            why = why or "its hello has an impossible incarnation"
        elif not why and end is not None and hello.incarnation < end.link.peer_incarnation:
            # A hello of an earlier incarnation, or of an impostor.
            why = "a newer node has that name"
        if why:
            facts = {"role": role.value, "key": mark, "address": address}
            session = hello.incarnation ^ hello.peer if is_possible else 0
            raise NotHeardError(why, {**facts, "node": name[:LONGEST_NAME]}, session)
        self._names.give(name, mark)
        anew = end is not None and not hello.peer and hello.incarnation > end.link.peer_incarnation
        if end is None or (end.link.is_final and anew):
            end = self.ends[name] = LinkEnd(self._new_link(name), mark, role)
            self._forget_oldest()
        end.address = address
        if end.route != route:
            if end.route is not None:
                self._routes.pop(end.route, None)
            end.route, end.is_connected = route, True
            self._routes[route] = end
        return end

    def _forget_oldest(self) -> None:
        over = [end for end in self.ends.values() if end.link.is_final]
        for end in over[: max(0, len(over) - REMEMBERED)]:
            del self.ends[end.link.peer]
            if end.route is not None:
                self._routes.pop(end.route, None)
