"""Sessions that outlive their client: kept by a name, taken up elsewhere, let go of.

Runs in: a client. The host agent decides who holds a session (`session.state.lease`); here is what
a client asks of it, and how the meshes of the last client become this one's: as the owner's
handles, under the names that they were given.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from monarch._src.actor.future import Future
from monarch._src.actor.refs import ProcsRef, agent_of, client_ref
from monarch._src.actor.runtime import runtime_or_none
from monarch._src.config import settings
from monarch._src.errors import SessionError
from monarch._src.failures.report import RankFailure
from monarch._src.mesh import client as own
from monarch._src.mesh import proc_mesh
from monarch._src.mesh.actor_mesh import ActorMesh, OwnedActors, call_target_of
from monarch._src.mesh.agent_process import AgentProcess
from monarch._src.mesh.client import NOT_BOTH, ClientSession, client_runtime, new_client_name
from monarch._src.mesh.host_mesh import hosts_of, this_host
from monarch._src.mesh.proc_mesh import (
    OwnedProcs,
    ProcMesh,
    Procs,
    note_for_the_next_client,
    owned_meshes,
    proc_bootstrapped,
    proc_ready,
    remember,
)
from monarch._src.net.peers import COMPARED
from monarch._src.net.session_directory import address_of
from monarch._src.session.attached_actors import InheritedActors
from monarch._src.session.directories import Session as Found
from monarch._src.session.names import check_free, check_name, find, names_locked
from monarch._src.session.records import LONGEST_PROGRAM, began_of
from monarch._src.session.remote_keep import RemoteKeep
from monarch._src.session.state.rollcall import PATIENCE_S
from monarch._src.shape import NDSlice, Region
from monarch._src.system import process_table
from monarch._src.wire.frames import Payload
from monarch._src.wire.ids import AGENT, host_of_site
from monarch._src.wire.messages import (
    AskKnown,
    Attach,
    Attached,
    Detach,
    Keep,
    Kept,
    KeptActors,
    KeptMesh,
    Message,
    Refused,
    TakenOver,
)
from monarch._src.wire.versions import mismatch

NO_ANSWER_S = 1.0
KNOWN_S = 1.5 * PATIENCE_S  # how long agents are waited for that answer within PATIENCE_S


class AttachedSession:
    """A session that this process has taken up: its meshes, by the names given at spawn.

    `procs` and `actors` hold those of each kind; `session["trainers"]` looks in both. Where several
    share a name, it means the one that was made last; `proc_meshes` and `actor_meshes` are all of
    them, oldest first.
    """

    def __init__(
        self, name: str, proc_meshes: Sequence[ProcMesh], actor_meshes: Sequence[ActorMesh]
    ) -> None:
        self.name = name
        self.proc_meshes = tuple(proc_meshes)
        self.actor_meshes = tuple(actor_meshes)
        self.procs: Mapping[str, ProcMesh] = {mesh.name: mesh for mesh in proc_meshes}
        self.actors: Mapping[str, Any] = {call_target_of(mesh).name: mesh for mesh in actor_meshes}

    def __getitem__(self, name: str) -> Any:
        if name in self.procs and name in self.actors:
            raise KeyError(
                f"{name!r} is a mesh of processes and one of actors: write .procs[{name!r}] or "
                f".actors[{name!r}]"
            )
        found = self.procs.get(name) or self.actors.get(name)
        if found is None:
            there = ", ".join([*self.procs, *self.actors]) or "nothing"
            raise KeyError(f"the session {self.name!r} has no mesh {name!r}; it has {there}")
        return found

    def __repr__(self) -> str:
        procs = ", ".join(map(repr, self.proc_meshes))
        actors = ", ".join(map(repr, self.actor_meshes))
        return f"<AttachedSession {self.name!r}: {procs or 'no procs'}; {actors or 'no actors'}>"


class KeptSession:
    """What this process asks of its agent about who holds the session."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._actors: list[tuple[KeptActors, Payload]] = []
        self.refused = False  # the last question
        self.away: RemoteKeep | None = None  # what is on workers, once there is something
        run = self._run = session.runtime
        run.handle(Kept, self._on_kept)
        run.handle(KeptActors, self._on_actors)
        run.handle(Attached, self._on_attached)
        run.handle(TakenOver, self._on_taken_over)
        run.handle(Refused, self._on_refused)
        session.when_agent_ends.append(self._agent_ended)

    def ask(self, question: Callable[[int], Message], agent: str = AGENT) -> Future[Any]:
        """A future of the answer; it fails with SessionError if that is no."""
        number = next(self._numbers)
        future = self._asked[number] = self._run.new_future()
        if not self._run.node.send(agent, question(number)):
            self._asked.pop(number, None)
            future.fail(SessionError("the host agent is gone"))
        return future

    def answer(self, question: Callable[[int], Message], what: str) -> Any:
        """Ask, and wait for the answer: not longer than for a host that is silent."""
        asked = f"its host agent (pid {self._session.agent.pid})"
        return self.answered(self.ask(question), what, asked)

    def answered(self, future: Future[Any], what: str, asked: str) -> Any:
        """Wait for that answer, of whom was asked, for as long."""
        patience = settings().liveness
        if not self._run.node.wait(future, patience):
            raise SessionError(
                f"{what}: {asked} did not answer within {patience:g} s; `monarch ps` says what it "
                "does"
            )
        return future.get()

    def wait_known(self) -> None:
        """Wait until the procs of the session, on all its hosts, know that this is the client.

        An agent that does not say so has ended, or will answer when it can: what becomes of its
        procs is told as at any other time, and is no reason to do without the others.
        """
        sites, run = self._session.sites, self._run
        away = [] if sites is None else [agent_of(site, run.site) for site in sites.held()]
        answers = [self.ask(AskKnown, agent) for agent in (AGENT, *away)]
        until = time.monotonic() + KNOWN_S
        for answer in answers:
            run.node.wait(answer, max(0.0, until - time.monotonic()))

    def has_away(self, attached: Attached | None = None) -> RemoteKeep:
        """What of the session is on workers, from now on."""
        if self.away is None:
            away = self.away = self._session.away = RemoteKeep(self._session, self, attached)
            on_heard = self._run.terminations.on_failures

            def heard(mesh: int, actor: int, failures: list[RankFailure]) -> None:
                if on_heard is not None:
                    on_heard(mesh, actor, failures)
                away.heard(mesh, actor, failures)

            self._run.terminations.on_failures = heard
        return self.away

    # --- on the thread that receives ----------------------------------------------------------

    def _on_kept(self, _peer: str, message: Kept, _payload: Payload) -> None:
        future = self._asked.pop(message.request, None)
        if future is None:
            return
        self.refused = bool(message.refusal)
        if message.refusal:
            future.fail(SessionError(message.refusal))
        else:
            future.settle(lambda: None)

    def _on_refused(self, _peer: str, message: Refused, _payload: Payload) -> None:
        self.refused = True
        for future in self._asked.values():
            future.fail(SessionError(message.why))
        self._asked.clear()

    def _agent_ended(self) -> None:
        self.refused = True
        for future in self._asked.values():
            future.fail(SessionError("its host agent has ended"))
        self._asked.clear()

    def _on_taken_over(self, peer: str, message: TakenOver, _payload: Payload) -> None:
        if peer == AGENT:
            name = self._session.kept_as
            self._session.taken_over(f"{message.why} (the kept session {name!r})")

    def _on_actors(self, peer: str, message: KeptActors, payload: Payload) -> None:
        if peer == AGENT:
            self._actors.append((message, payload.own()))

    def _on_attached(self, _peer: str, message: Attached, _payload: Payload) -> None:
        # Here and not where it is waited for: what comes next is what has failed there.
        future = self._asked.pop(message.request, None)
        if future is None:
            return
        run = self._run
        run.client_ref = client_ref(run.name, run.directory, run.host, message.number)
        run.hooks.on_proc_ready, run.terminations.on_bootstrapped = proc_ready, proc_bootstrapped
        self._session.kept_as = message.name
        if message.token:
            self.has_away(message)
        meshes = {kept.mesh: self._inherit(kept) for kept in message.meshes}
        actors = [
            self._inherit_actors(meshes[kept.mesh], kept, payload)
            for kept, payload in self._actors
            if kept.mesh in meshes
        ]
        self._actors.clear()
        attached = AttachedSession(message.name, list(meshes.values()), actors)
        future.settle(lambda: attached)

    def _inherit(self, kept: KeptMesh) -> ProcMesh:
        run = self._run
        ref = ProcsRef(
            kept.mesh, kept.name, tuple(kept.labels), tuple(kept.sizes), run.directory, run.name,
            ", ".join(map(host_of_site, kept.sites)) or run.host, sites=tuple(kept.sites),
        )  # fmt: skip
        region = Region.of_extent(ref.extent)
        procs = Procs(ref, region, owned=True, cleanup_s=kept.cleanup_s)
        procs.kept = True
        procs.spawned_at = time.monotonic() - kept.age_s
        procs.initialized = run.new_future()
        self._session.cleanup_s = max(self._session.cleanup_s, kept.cleanup_s)
        mesh = ProcMesh(run, procs, region, hosts_of(ref.sites) if ref.sites else this_host())
        run.known.learn(ref)
        for rank in region.ranks():
            run.node.expect(ref.node(rank), ref.site(rank))
        run.ownership.own(ref.uid, OwnedProcs(mesh))
        remember(mesh)
        return mesh

    def _inherit_actors(self, mesh: ProcMesh, kept: KeptActors, payload: Payload) -> ActorMesh:
        procs = mesh._procs  # pyright: ignore[reportPrivateUsage]
        offset, sizes, strides = kept.region
        view = NDSlice(offset=offset, sizes=sizes, strides=strides)
        region = Region(tuple(kept.labels), view)
        actors = InheritedActors(kept, payload, procs.ref, region)
        procs.actors[kept.actor], actors.held_in = actors, procs.actors
        found = ActorMesh(self._run, actors, region)
        self._run.ownership.own(kept.actor, OwnedActors(found), procs.ref.uid)
        return found


def _custody_of(session: ClientSession) -> KeptSession:
    if not isinstance(session.custody, KeptSession):
        session.custody = KeptSession(session)
    return session.custody


# --- keep -----------------------------------------------------------------------------------------


def keep(name: str, meshes: Iterable[ProcMesh] | None = None) -> None:
    """Let meshes of this process outlive it, in a session of that name.

    When this process ends, however it does, their processes live on with the state of their actors;
    `attach(name)` takes them up in another one. Again with the same name keeps more.

    Args:
        name: letters, digits, `_`, `.` and `-`; no other session that you keep on this machine has
            it.
        meshes: proc meshes that this process has spawned, whole ones; None: all of them, and all
            that it spawns later.

    Raises:
        SessionError: the name is in use; this session has another name already; this process is one
            of a mesh, or its host agent does not answer.
        ValueError: a name of other characters; a mesh that is stopped, a slice, not ours, or one
            whose procs are restarted.
        TypeError: what is no proc mesh.
    """
    check_name(name)
    chosen = None if meshes is None else [_owned(mesh) for mesh in meshes]
    with own.lock:
        _only_in_a_client()
        session = own.session()
        if session.kept_as and session.kept_as != name:
            raise SessionError(
                f"this session is kept as {session.kept_as!r} already, and has one name: use that, "
                "or stop its meshes and begin anew with shutdown_context()"
            )
        found = [m for m in owned_meshes() if m._runtime is session.runtime]  # pyright: ignore[reportPrivateUsage]
        chosen = [_owned(mesh) for mesh in found] if chosen is None else chosen
        custody = _custody_of(session)
        uids = [int(mesh.uid, 16) for mesh in chosen]
        elsewhere = [mesh for mesh in chosen if mesh._procs.ref.sites]  # pyright: ignore[reportPrivateUsage]
        what = f"{name!r} is not kept"
        with names_locked():
            check_free(name, session.directory)
            if elsewhere:
                custody.has_away().tell(elsewhere)
            # From here on what is spawned is noted; and the answer comes behind what was noted.
            for mesh in chosen:
                note_for_the_next_client(mesh)
            custody.answer(lambda number: Keep(number, name, uids), what)
            for kept in custody.has_away().keep(name, elsewhere) if elsewhere else ():
                custody.answered(kept, what, "a worker")
        session.kept_as = name
        session.keeps_new = session.keeps_new or meshes is None
        session.note_away = partial(_note_away, session, custody)


def _note_away(session: ClientSession, custody: KeptSession, mesh: ProcMesh | None) -> None:
    """A mesh on workers is about to be asked for, and is to be kept; None: one is gone."""
    custody.has_away().tell([] if mesh is None else [mesh])
    if mesh is not None:  # before it is asked for, on the same way
        custody.has_away().keep(session.kept_as, [mesh])


def _owned(mesh: ProcMesh) -> ProcMesh:
    if not isinstance(mesh, ProcMesh):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"keep takes proc meshes, not {mesh!r}; their actors are kept with them")
    if mesh.is_slice:
        raise ValueError(f"keep the whole mesh {mesh.name!r}, not a slice of it")
    if all(mesh.uid != one.uid for one in owned_meshes()):
        state = "has been stopped" if mesh.stopped else "belongs to who spawned it"
        raise ValueError(f"{mesh.name!r} cannot be kept: it {state}")
    if mesh._procs.ref.restarts:  # pyright: ignore[reportPrivateUsage]
        raise ValueError(NOT_BOTH.format(mesh.name))
    return mesh


def _only_in_a_client() -> None:
    run = runtime_or_none()
    if run is not None and run.proc_ref is not None:
        raise SessionError(
            f"{run.name} is a process of the mesh {run.proc_ref.name!r}; only a client keeps "
            "sessions, and takes them up"
        )


# --- attach ---------------------------------------------------------------------------------------


def attach(name: str | None = None, *, take: bool = False) -> AttachedSession:
    """Take up a session that is kept: this process holds it from now on, and owns its meshes.

    It is told of what fails from now on, and of what has failed while nobody was attached. What is
    spawned from now on ends with this process, unless it is kept too. When this returns all procs
    know of this process; one that does not react is waited for for a second.

    Args:
        name: under which it is kept, or that of one of its meshes; None if there is only one that
            nobody holds.
        take: take it from a client that holds it and lives; calls of that one then raise.

    Raises:
        SessionError: there is no such session; somebody holds it; it was made by another version of
            Python or of monarch; this process has meshes of its own, or is one of a mesh.
        HostUnreachableError: none of its workers can be reached. Of several, one that cannot be is
            lost to the session, and what was there is told as at any loss of a host.
        FileNotFoundError, PermissionError: the keys of its workers are not where they were, or
            others could read them.
    """
    with own.lock:
        _only_in_a_client()
        _check_nothing_of_our_own()
        found = find(name)
        kept, agent = found.kept, found.agent
        if kept is None or agent is None:
            raise SessionError(f"the session {name!r} has just ended")
        who = f"the session {kept.name!r} (host agent {kept.agent_pid})"
        why = mismatch(who, COMPARED, kept.versions)
        if why:
            raise SessionError(f"{why}\nattach with the Python environment that it was made with")
        own.shutdown_context(reason="another session is taken up")
        return _take_up(found, kept.name, AgentProcess(agent.pid, agent.began), take=take)


def _take_up(found: Found, name: str, agent: AgentProcess, *, take: bool) -> AttachedSession:
    run = client_runtime(new_client_name(), found.directory)
    session = ClientSession(found.directory, agent, run)
    own.adopt(session)  # what has failed there is told as soon as it is ours
    custody = _custody_of(session)
    pid = os.getpid()
    program = process_table.command_of(pid)[:LONGEST_PROGRAM]
    try:
        run.node.link(AGENT, address_of(found.directory, AGENT))
        attached = custody.answer(
            lambda number: Attach(number, pid, began_of(pid), program, run.host, take),
            f"the session {name!r} is not taken up",
        )
        session.note_away = partial(_note_away, session, custody)
        if custody.away is not None:
            custody.away.take_up()
        custody.wait_known()
    except BaseException as error:
        # Interrupted, or without an answer, it may be ours: then it is let go of.
        ask = _nothing if custody.refused else partial(custody.ask, Detach)
        try:
            session.let_go(ask, "this process has not taken it up", NO_ANSWER_S)
        finally:
            own.give_up()
        if isinstance(error, SessionError) and "\n" not in str(error):
            raise SessionError(f"the session {name!r} is not taken up: {error}") from None
        raise
    return cast(AttachedSession, attached)


def _check_nothing_of_our_own() -> None:
    found = own.current_session()
    if found is None or found.lost is not None:
        return
    if found.kept_as:
        raise SessionError(
            f"this process holds the session {found.kept_as!r}; detach() lets go of it"
        )
    names = ", ".join(mesh.name for mesh in owned_meshes())
    if names:
        raise SessionError(
            f"this process has meshes of its own ({names}), and one session at a time: stop them, "
            "or attach in another process"
        )


# --- detach ---------------------------------------------------------------------------------------


def detach() -> None:
    """Let go of the session that this process holds: what is kept lives on, the rest ends.

    Returns when the rest is gone. Meshes that are kept are out of reach then, until a process
    attaches.

    Raises:
        SessionError: this process holds no kept session.
    """
    with own.lock:
        session = own.current_session()
        if session is None or not session.kept_as or session.lost is not None:
            raise SessionError("this process holds no kept session; keep(name) makes it one")
        _let_go(session)


def _let_go(session: ClientSession) -> None:
    name = session.kept_as
    if not any(mesh._procs.kept for mesh in owned_meshes()):  # pyright: ignore[reportPrivateUsage]
        own.shutdown_context(reason="nothing is left of what it kept")
        return
    _leave(
        session, f"this process has let go of the session {name!r}; attach({name!r}) takes it up"
    )


def _nothing() -> Future[None]:
    return Future[None].of(None)


def _leave(session: ClientSession, why: str) -> None:
    custody = _custody_of(session)
    try:
        session.let_go(lambda: custody.ask(Detach), why)
    finally:
        own.give_up()


def _leave_kept(session: ClientSession) -> bool:
    if not session.kept_as or session.lost is not None:
        return False
    with own.lock:
        _let_go(session)
    return True


own.leave_kept = _leave_kept
proc_mesh.when_one_is_gone = lambda: own.note_away(None)
