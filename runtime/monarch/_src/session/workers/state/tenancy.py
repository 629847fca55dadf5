"""Tenancy: which client has a worker host. No I/O.

A worker serves one client at a time, its *tenant*. It begins without one. When a tenant has left,
however, the worker ends all that the tenant had before it accepts the next; but *kept* meshes go
on, for the next client of the same session.

    FREE --asked--> HELD --released / lost, nothing kept--> CLEARING --cleared--> FREE
                    |  ^  |                                    ^
    taken over by   +--+  | left / lost, meshes kept           | given up, nothing left
    the session's         v                                    |
    next client        DETACHED -------------------------------+
                          | claimed by the session's next client --> HELD

    told to end, in any state --> ENDING

A client that asks while another holds the host is refused. But it waits while the holder cannot be
reached, and while the host is cleared, so that a program that is restarted after a crash gets the
host as soon as the worker has noticed the crash.

A session is identified by its *token*, and its clients are numbered. A client with the token and a
larger number than the tenant's gets the host at once, whether the tenant can be reached or not. A
client with a smaller number was replaced without its knowledge, and is refused.

Events are methods named in the past tense; each returns the actions that follow, in order. The
driver is `monarch._src.session.workers.worker_part`.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from monarch._src.session.state.lease import EndSession, process_words


class TenancyState(enum.Enum):
    """The states of a worker host."""

    FREE = "free"
    HELD = "held"
    DETACHED = "detached"
    CLEARING = "clearing"
    ENDING = "ending"


_S = TenancyState
TRANSITIONS: dict[TenancyState, frozenset[TenancyState]] = {
    _S.FREE: frozenset({_S.HELD, _S.ENDING}),
    _S.HELD: frozenset({_S.HELD, _S.DETACHED, _S.CLEARING, _S.ENDING}),
    _S.DETACHED: frozenset({_S.HELD, _S.CLEARING, _S.ENDING}),
    _S.CLEARING: frozenset({_S.FREE, _S.ENDING}),
    _S.ENDING: frozenset(),
}


class Tenant(msgspec.Struct, frozen=True):
    """A client that asks for the host; `request` is the number of its request.

    `number`: how many clients its session had before it. `token`: of a session that has kept meshes
    on this host; empty for a client that wants a free host.
    """

    node: str
    request: int
    pid: int
    program: str
    host: str
    liveness_s: float
    number: int = 0
    token: str = ""

    def __repr__(self) -> str:
        return f"<Tenant {self.node} {self.request}, client {self.number}>"  # no token

    @property
    def words(self) -> str:
        """`process 123 (python train.py) on host`."""
        return process_words(self.pid, self.program, self.host)


class Grant(msgspec.Struct, frozen=True):
    """That client gets the host."""

    tenant: Tenant


class Resume(msgspec.Struct, frozen=True):
    """That client gets the host, and owns the kept meshes: send them to it, tell the procs."""

    tenant: Tenant


class ReleaseClient(msgspec.Struct, frozen=True):
    """That client no longer has the host, and there is no other: end all that is not kept.

    Unless `request` is 0, the client waits for the answer to that request, when all has ended.
    """

    tenant: Tenant
    why: str
    request: int


class Evict(msgspec.Struct, frozen=True):
    """As `ReleaseClient`, but another client gets the host: send the old one no more messages."""

    tenant: Tenant
    why: str


class Refuse(msgspec.Struct, frozen=True):
    """That client can't have the host."""

    tenant: Tenant
    why: str


class Clear(msgspec.Struct, frozen=True):
    """End everything that the tenant had; report `cleared` when it has ended."""

    tenant: Tenant
    why: str


class Drop(msgspec.Struct, frozen=True):
    """All that the tenant had has ended. Answer its request, unless `request` is 0."""

    tenant: Tenant
    request: int


Action: TypeAlias = Grant | Resume | ReleaseClient | Evict | Refuse | Clear | Drop | EndSession


class Tenancy:
    """The tenancy of one worker host."""

    def __init__(self) -> None:
        self.state = _S.FREE
        # The client that has the host, or had it last; None before the first.
        self.tenant: Tenant | None = None
        self._reachable = True  # whether the tenant can be reached, as far as is known
        self._waiting: list[Tenant] = []  # in the order of their requests
        self._leaving = 0  # the number of the request by which the tenant released the host
        # Of the session that has kept meshes here; both are empty while there are none.
        self._token = ""
        self.name = ""

    # --- events -------------------------------------------------------------------------------

    def asked(self, client: Tenant) -> list[Action]:
        """A client asks for the host."""
        if self.state is _S.ENDING:
            return [Refuse(client, "it is ending")]
        if any(client.node == other.node for other in self._waiting):
            return [Refuse(client, "this process has already asked for it")]
        if client.token:
            return self._claimed(client)
        if self.state is _S.DETACHED:
            return [self._refused(client)]
        if self.state is _S.FREE:
            return self._welcome(client)
        if self.state is _S.HELD and self._holds(client.node):
            return [Refuse(client, "this process already has it")]
        if self.state is _S.HELD and self._reachable:
            return [self._refused(client)]
        self._waiting.append(client)
        return []

    def keep_asked(self, node: str, token: str, name: str) -> bool:
        """The tenant asks to keep meshes here; whether it may."""
        if self.state is not _S.HELD or not self._holds(node) or not token:
            return False
        self._token, self.name = token, name
        return True

    def detached(self, node: str, request: int) -> list[Action]:
        """The tenant detaches; kept meshes stay."""
        if self.state is not _S.HELD or not self._holds(node):
            return []
        assert self.tenant is not None
        why = f"{self.tenant.words} has detached from its session"
        return self._detach(why, request) if self._token else self.released(node, request)

    def given_up(self, why: str) -> list[Action]:
        """All kept meshes have ended, or no client has attached in time."""
        return self._clear(why) if self.state is _S.DETACHED else []

    def reached(self, node: str) -> list[Action]:
        """There is a connection to that client (again)."""
        if not self._holds(node) or self.state is not _S.HELD:
            return []
        self._reachable = True
        waiting, self._waiting = self._waiting, []
        return [self._refused(client) for client in waiting]

    def out_of_reach(self, node: str) -> list[Action]:
        """There is no connection to that client for the time being."""
        if self._holds(node):
            self._reachable = False
        return []

    def lost(self, node: str, why: str) -> list[Action]:
        """A client is gone, or counts as lost."""
        self._waiting = [client for client in self._waiting if client.node != node]
        if not self._holds(node):
            return []
        self._leaving = 0  # the client is gone, and needs no answer
        if self.state is not _S.HELD:
            return []
        return self._detach(why, 0) if self._token else self._clear(why)

    def released(self, node: str, request: int) -> list[Action]:
        """The tenant releases the host."""
        if self.state is not _S.HELD or not self._holds(node):
            return []
        self._leaving = request
        assert self.tenant is not None
        return self._clear(f"{self.tenant.words} has released this host")

    def cleared(self) -> list[Action]:
        """All that the tenant had has ended."""
        if self.state is not _S.CLEARING:
            return []
        assert self.tenant is not None
        actions: list[Action] = [Drop(self.tenant, self._leaving)]
        self._move(_S.FREE)
        self._leaving = 0
        if self._waiting:
            first, *others = self._waiting
            self._waiting = []
            actions += self._welcome(first)
            actions += [self._refused(client) for client in others]
        return actions

    def told_to_end(self, why: str) -> list[Action]:
        """The tenant, a signal, or the starting program ends the worker."""
        if self.state is _S.ENDING:
            return []
        self._move(_S.ENDING)
        waiting, self._waiting = self._waiting, []
        return [*(Refuse(client, "it is ending") for client in waiting), EndSession(why)]

    # --- questions ----------------------------------------------------------------------------

    @property
    def holder(self) -> str:
        """The node that has the host; empty if none does."""
        held = self.state is _S.HELD
        return self.tenant.node if held and self.tenant is not None else ""

    def knows(self, token: str) -> bool:
        """Whether meshes of the session with that token are kept here."""
        return bool(token) and token == self._token

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        assert bool(self._token) == bool(self.name)
        assert self.state is not _S.DETACHED or self._token
        assert not self._token or self.state in (_S.HELD, _S.DETACHED, _S.ENDING)
        assert self.state in (_S.FREE, _S.ENDING) or self.tenant is not None
        assert not self._waiting or self.state is _S.CLEARING or (
            self.state is _S.HELD and not self._reachable
        )  # fmt: skip
        assert not self._leaving or self.state in (_S.CLEARING, _S.ENDING)
        assert len({client.node for client in self._waiting}) == len(self._waiting)

    # --- inside -------------------------------------------------------------------------------

    def _holds(self, node: str) -> bool:
        held = self.state in (_S.HELD, _S.CLEARING)
        return held and self.tenant is not None and self.tenant.node == node

    def _claimed(self, client: Tenant) -> list[Action]:
        """A client claims the kept meshes of its session."""
        if not self.knows(client.token):
            return [Refuse(client, "no mesh of that session is left there")]
        assert self.tenant is not None
        if client.number <= self.tenant.number:
            return [Refuse(client, f"{self.tenant.words} has attached to that session since")]
        actions: list[Action] = []
        if self.state is _S.HELD:
            actions.append(Evict(self.tenant, f"{client.words} has taken its session over"))
        waiting, self._waiting = self._waiting, []
        self.tenant, self._reachable = client, True
        self._move(_S.HELD)
        return [*actions, Resume(client), *(self._refused(other) for other in waiting)]

    def _detach(self, why: str, request: int) -> list[Action]:
        assert self.tenant is not None
        self._move(_S.DETACHED)
        waiting, self._waiting = self._waiting, []
        leave = ReleaseClient(self.tenant, why, request)
        return [leave, *(self._refused(client) for client in waiting)]

    def _refused(self, client: Tenant) -> Action:
        assert self.tenant is not None
        if self.state is _S.DETACHED:
            return Refuse(
                client,
                f"the session {self.name!r} keeps meshes on it; its last client was "
                f"{self.tenant.words}: there, `monarch attach {self.name}` attaches to the "
                f"session, `monarch kill {self.name}` ends it",
            )
        return Refuse(
            client,
            f"{self.tenant.words} has it; it becomes free when that process stops the host mesh "
            "or ends",
        )

    def _welcome(self, client: Tenant) -> list[Action]:
        self.tenant, self._reachable = client, True
        self._move(_S.HELD)
        return [Grant(client)]

    def _clear(self, why: str) -> list[Action]:
        assert self.tenant is not None
        self._token = self.name = ""
        self._move(_S.CLEARING)
        return [Clear(self.tenant, why)]

    def _move(self, state: TenancyState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
