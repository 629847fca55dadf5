"""Who has dialled this process: by which name, from where, with which key.

Runs in: any process that listens beyond its host, under the lock of its links. No I/O of its own.
Invariants: a name belongs to the key that it first came with. A node has one end here, that of its
last life; of those that are over so many are remembered, so that who comes late is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch._src.net.hosts.authenticator import who_sent
from monarch._src.net.hosts.link_types import End
from monarch._src.net.state.access import LONGEST_NAME, Names, Role
from monarch._src.net.state.link import Link
from monarch._src.wire.frames import Buffer, FrameError
from monarch._src.wire.link_protocol import LinkHello, LinkRefused, decode_link, encode_link

GRAVES = 1024  # ends of sessions that are remembered
_HELLO = encode_link(LinkHello("", 0, {}, 0, 0, 0, False))[1:3]  # an array so long, and its tag


class NotHeardError(Exception):
    """What somebody says who has dialled is not to be heard. `facts`: who it is, for the audit.

    `session`: the one that it means, for it to be told; 0 if it means none.
    """

    def __init__(self, why: str, facts: dict[str, str], session: int = 0) -> None:
        super().__init__(why)
        self.facts = facts
        self.session = session

    def refusal(self, by: str) -> bytes:
        """What that node tells it."""
        return encode_link(LinkRefused(self.session, f"{by} does not let it in: {self}"))


class Accepted:
    """See the module's text. `ends`: by the name of the node."""

    def __init__(self, new_link: Callable[[str], Link], *, has_gate: bool) -> None:
        """`has_gate`: whoever connects has been let in by one, which says who it is."""
        self._new_link = new_link
        self._has_gate = has_gate
        self._routes: dict[bytes, End] = {}
        self._names = Names()
        self.ends: dict[str, End] = {}

    def end_of(self, route: bytes, frames: list[Buffer], part: Any) -> End:
        """The end of who says that by that route; it is another one if that is a hello.

        Raises:
            NotHeardError: it has said none, or may not have the name that is in it.
        """
        end = self._routes.get(route)
        if end is None or bytes(frames[0][1:3]) == _HELLO:
            try:
                message = decode_link(frames)
            except FrameError as error:
                raise NotHeardError(str(error), self._facts(part)) from None
            if isinstance(message, LinkHello):
                end = self._met(route, message, part)
        if end is None:
            raise NotHeardError("it has said no hello", self._facts(part))
        return end

    def _facts(self, part: Any) -> dict[str, str]:
        """Who has sent that frame, as far as it is known."""
        if not self._has_gate:
            return {}
        role, mark, address = who_sent(part)
        return {"role": role.value, "key": mark, "address": address}

    def _met(self, route: bytes, hello: LinkHello, part: Any) -> End:
        """The end of who says hello by that route."""
        role, mark, address = who_sent(part) if self._has_gate else (Role.OWNER, "", "")
        name = hello.node
        end = self.ends.get(name)
        is_possible = hello.incarnation > 0 and hello.peer >= 0
        why = self._names.refused(name, role, mark)
        if not is_possible:
            why = why or "no node can have begun then"
        elif not why and end is not None and hello.incarnation < end.link.peer_incarnation:
            # Of an earlier life, which nobody waits for any more; or somebody else's.
            why = "another node, which has begun later, has that name"
        if why:
            facts = {"role": role.value, "key": mark, "address": address}
            session = hello.incarnation ^ hello.peer if is_possible else 0
            raise NotHeardError(why, {**facts, "node": name[:LONGEST_NAME]}, session)
        self._names.give(name, mark)
        anew = end is not None and not hello.peer and hello.incarnation > end.link.peer_incarnation
        if end is None or (end.link.is_final and anew):
            end = self.ends[name] = End(self._new_link(name), mark, role)
            self._bury()
        end.address = address
        if end.route != route:
            if end.route is not None:
                self._routes.pop(end.route, None)
            end.route = route
            self._routes[route] = end
        return end

    def _bury(self) -> None:
        over = [end for end in self.ends.values() if end.link.is_final]
        for end in over[: max(0, len(over) - GRAVES)]:
            del self.ends[end.link.peer]
            if end.route is not None:
                self._routes.pop(end.route, None)
