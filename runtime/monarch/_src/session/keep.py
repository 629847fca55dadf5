"""Kept sessions, which outlive their client: `keep`, `attach` from another process, `detach`.

Runs in: a client. The host agent decides which client holds a session (`session.state.lease`). This
module has the client's requests, and makes the meshes of the last client meshes of this one, with
owner's handles, under the names given at spawn.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from monarch._src.actor.endpoint import ActorClass, actor_class
from monarch._src.actor.future import Future
from monarch._src.actor.refs import ProcsRef, agent_of, client_ref
from monarch._src.actor.runtime import runtime_or_none
from monarch._src.actor.serialize import unpack_value
from monarch._src.config import settings
from monarch._src.errors import SessionError
from monarch._src.failures.report import RankFailure
from monarch._src.mesh import client as own
from monarch._src.mesh import procs as mesh_procs
from monarch._src.mesh.actor_mesh import ActorMesh, Actors, OwnedActors, call_target_of
from monarch._src.mesh.agent_process import AgentProcess
from monarch._src.mesh.client import (
    KEPT_AND_RESTARTED,
    ClientSession,
    client_runtime,
    new_client_name,
)
from monarch._src.mesh.meshes import (
    ProcMesh,
    hosts_of,
    owned_meshes,
    record_actors_of,
    shared_procs,
    this_host,
)
from monarch._src.mesh.procs import OwnedProcs, Procs, proc_bootstrapped, proc_ready, remember
from monarch._src.net.peers import COMPARED
from monarch._src.net.session_directory import address_of
from monarch._src.session.directories import Session as Found
from monarch._src.session.directories import check_free, check_name, find_kept, names_locked
from monarch._src.session.records import LONGEST_PROGRAM
from monarch._src.session.remote_keep import RemoteKeep
from monarch._src.session.state.rollcall import PATIENCE_S
from monarch._src.shape import NDSlice, Region
from monarch._src.system import process_table
from monarch._src.system.process_table import began_of
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
KNOWN_S = 1.5 * PATIENCE_S  # the longest wait for agents, which answer within PATIENCE_S


class AttachedSession:
    """A session that this process is attached to: its meshes, by the names given at spawn.

    `procs` and `actors` hold the meshes of each kind; `session["trainers"]` looks in both. If
    several meshes share a name, it means the newest; `proc_meshes` and `actor_meshes` hold all,
    oldest first.
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
    """The requests of this process to host agents about the session, and their answers."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._numbers = itertools.count(1)
        self._requests: dict[int, Future[Any]] = {}
        self._actors: list[tuple[KeptActors, Payload]] = []
        self.refused = False  # whether the last request was refused
        self.away: RemoteKeep | None = None  # the part on workers, once there is one
        run = self._run = session.runtime
        run.handle(Kept, self._on_kept)
        run.handle(KeptActors, self._on_actors)
        run.handle(Attached, self._on_attached)
        run.handle(TakenOver, self._on_taken_over)
        run.handle(Refused, self._on_refused)
        session.agent_ended_callbacks.append(self._on_agent_ended)

    def ask(self, question: Callable[[int], Message], agent: str = AGENT) -> Future[Any]:
        """A future of the answer; it fails with SessionError if the agent refuses."""
        number = next(self._numbers)
        future = self._requests[number] = self._run.new_future()
        if not self._run.node.send(agent, question(number)):
            self._requests.pop(number, None)
            future.fail(SessionError("the host agent is gone"))
        return future

    def answer(self, question: Callable[[int], Message], what: str) -> Any:
        """Ask the host agent, and wait for the answer as `answered` does."""
        asked = f"its host agent (pid {self._session.agent.pid})"
        return self.answered(self.ask(question), what, asked)

    def answered(self, future: Future[Any], what: str, asked: str) -> Any:
        """Wait for an answer, for at most the setting `liveness`.

        `what`: begins the error; `asked`: names the process that was asked.
        """
        patience = settings().liveness
        if not self._run.node.wait(future, patience):
            raise SessionError(
                f"{what}: {asked} did not answer within {patience:g} s; `monarch ps` shows its "
                "state"
            )
        return future.get()

    def wait_known(self) -> None:
        """Wait until the procs of the session, on all its hosts, know this client.

        An agent that does not confirm has ended or is late. Failures of its procs are reported as
        usual, and are no reason to do without the others.
        """
        sites, run = self._session.sites, self._run
        away = [] if sites is None else [agent_of(site, run.site) for site in sites.held()]
        answers = [self.ask(AskKnown, agent) for agent in (AGENT, *away)]
        until = time.monotonic() + KNOWN_S
        for answer in answers:
            run.node.wait(answer, max(0.0, until - time.monotonic()))

    def ensure_remote_keep(self, attached: Attached | None = None) -> RemoteKeep:
        """The part of the session that is on workers, created on first use."""
        if self.away is None:
            away = self.away = self._session.away = RemoteKeep(self._session, self, attached)
            on_heard = self._run.terminations.on_failures

            def on_acknowledged(mesh: int, actor: int, failures: list[RankFailure]) -> None:
                if on_heard is not None:
                    on_heard(mesh, actor, failures)
                away.on_acknowledged(mesh, actor, failures)

            self._run.terminations.on_failures = on_acknowledged
        return self.away

    # --- on the receiving thread --------------------------------------------------------------

    def _on_kept(self, _peer: str, message: Kept, _payload: Payload) -> None:
        future = self._requests.pop(message.request, None)
        if future is None:
            return
        self.refused = bool(message.refusal)
        if message.refusal:
            future.fail(SessionError(message.refusal))
        else:
            future.settle(lambda: None)

    def _on_refused(self, _peer: str, message: Refused, _payload: Payload) -> None:
        self.refused = True
        for future in self._requests.values():
            future.fail(SessionError(message.why))
        self._requests.clear()

    def _on_agent_ended(self) -> None:
        self.refused = True
        for future in self._requests.values():
            future.fail(SessionError("its host agent has ended"))
        self._requests.clear()

    def _on_taken_over(self, peer: str, message: TakenOver, _payload: Payload) -> None:
        if peer == AGENT:
            name = self._session.kept_as
            self._session.on_taken_over(f"{message.why} (the kept session {name!r})")

    def _on_actors(self, peer: str, message: KeptActors, payload: Payload) -> None:
        if peer == AGENT:
            self._actors.append((message, payload.own()))

    def _on_attached(self, _peer: str, message: Attached, _payload: Payload) -> None:
        # On this thread, since the next messages are failures in these meshes.
        future = self._requests.pop(message.request, None)
        if future is None:
            return
        run = self._run
        run.client_ref = client_ref(run.name, run.directory, run.host, message.number)
        run.hooks.on_proc_ready, run.terminations.on_bootstrapped = proc_ready, proc_bootstrapped
        self._session.kept_as = message.name
        if message.token:
            self.ensure_remote_keep(message)
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
        owned = OwnedProcs(mesh, procs, run, mesh._stop)  # pyright: ignore[reportPrivateUsage]
        run.ownership.own(ref.uid, owned)
        remember(owned)
        return mesh

    def _inherit_actors(self, mesh: ProcMesh, kept: KeptActors, payload: Payload) -> ActorMesh:
        procs = shared_procs(mesh)
        offset, sizes, strides = kept.region
        view = NDSlice(offset=offset, sizes=sizes, strides=strides)
        region = Region(tuple(kept.labels), view)
        actors = InheritedActors(kept, payload, procs.ref, region)
        procs.actors[kept.actor], actors.listed_in = actors, procs.actors
        found = ActorMesh(self._run, actors, region)
        self._run.ownership.own(kept.actor, OwnedActors(found), procs.ref.uid)
        return found


def _kept_session_of(session: ClientSession) -> KeptSession:
    if not isinstance(session.kept_session, KeptSession):
        session.kept_session = KeptSession(session)
    return session.kept_session


# --- keep -----------------------------------------------------------------------------------------


def keep(name: str, meshes: Iterable[ProcMesh] | None = None) -> None:
    """Let meshes of this process outlive it, in a session of that name.

    However this process ends, their processes live on with the state of their actors, and another
    process gets them by `attach(name)`. A second call with the same name keeps more meshes.

    Args:
        name: letters, digits, `_`, `.` and `-`; it must differ from the names of your other kept
            sessions on this machine.
        meshes: proc meshes that this process has spawned, no slices; None: all of them, and all
            that it spawns later.

    Raises:
        SessionError: the name is in use; this session is already kept under another name; this
            process belongs to a mesh; or its host agent does not answer.
        ValueError: a name with other characters; a mesh that is stopped, is a slice, was spawned
            elsewhere, or has `restart=`.
        TypeError: not a proc mesh.
    """
    check_name(name)
    chosen = None if meshes is None else [_owned(mesh) for mesh in meshes]
    with own.lock:
        _only_in_a_client()
        session = own.session()
        if session.kept_as and session.kept_as != name:
            raise SessionError(
                f"this session is kept as {session.kept_as!r} already, and a session has one name: "
                "use that, or end it and start a new one with shutdown_context()"
            )
        found = [m for m in owned_meshes() if m._runtime is session.runtime]  # pyright: ignore[reportPrivateUsage]
        chosen = [_owned(mesh) for mesh in found] if chosen is None else chosen
        kept_session = _kept_session_of(session)
        uids = [int(mesh.uid, 16) for mesh in chosen]
        elsewhere = [mesh for mesh in chosen if shared_procs(mesh).ref.sites]
        what = f"{name!r} is not kept"
        with names_locked():
            check_free(name, session.directory)
            if elsewhere:
                kept_session.ensure_remote_keep().tell(elsewhere)
            # From here on the agent gets a record of every spawn, and answers after those.
            for mesh in chosen:
                record_actors_of(mesh)
            kept_session.answer(lambda number: Keep(number, name, uids), what)
            for kept in (
                kept_session.ensure_remote_keep().keep(name, elsewhere) if elsewhere else ()
            ):
                kept_session.answered(kept, what, "a worker")
        session.kept_as = name
        session.keeps_new = session.keeps_new or meshes is None
        session.on_remote_mesh = partial(_on_remote_mesh, session, kept_session)


def _on_remote_mesh(
    session: ClientSession, kept_session: KeptSession, mesh: ProcMesh | None
) -> None:
    """Tell agents of a mesh on workers that is about to be spawned, or (None) has ended."""
    kept_session.ensure_remote_keep().tell([] if mesh is None else [mesh])
    if mesh is not None:  # sent before the request for its procs, by the same route
        kept_session.ensure_remote_keep().keep(session.kept_as, [mesh])


def _owned(mesh: ProcMesh) -> ProcMesh:
    if not isinstance(mesh, ProcMesh):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"keep takes proc meshes, not {mesh!r}; their actors are kept with them")
    if mesh.is_slice:
        raise ValueError(f"keep the whole mesh {mesh.name!r}, not a slice of it")
    if all(mesh.uid != one.uid for one in owned_meshes()):
        state = "has been stopped" if mesh.stopped else "was spawned elsewhere"
        raise ValueError(f"{mesh.name!r} cannot be kept: it {state}")
    ref = shared_procs(mesh).ref
    if ref.restarts:
        raise ValueError(KEPT_AND_RESTARTED.format(mesh.name))
    run = runtime_or_none()
    if run is not None and run.known.restarts(ref):
        raise ValueError(
            f"{mesh.name!r} cannot be kept: ranks of it were restarted, and the next client would "
            "not find them; spawn it again"
        )
    return mesh


def _only_in_a_client() -> None:
    run = runtime_or_none()
    if run is not None and run.proc_ref is not None:
        raise SessionError(
            f"{run.name} is a process of the mesh {run.proc_ref.name!r}; only a client can keep "
            "sessions and attach to them"
        )


# --- attach ---------------------------------------------------------------------------------------


def attach(name: str | None = None, *, take: bool = False) -> AttachedSession:
    """Attach to a kept session: this process holds it from now on, and owns its meshes.

    This process gets all failures from now on, and those that occurred while no client was
    attached. Meshes that it spawns end with it, unless they are kept too. When this returns, all
    procs know this process; for a proc that does not react it waits at most a second.

    Args:
        name: the name of the session, or of one of its meshes; None if there is only one session
            without a client.
        take: take the session from a client that holds it; calls of that client then raise.

    Raises:
        SessionError: there is no such session; another client holds it; another version of Python
            or of monarch made it; this process has meshes of its own, or belongs to a mesh.
        HostUnreachableError: none of its workers can be reached. If some can, the others are lost
            to the session, which is reported as any loss of a host.
        FileNotFoundError, PermissionError: the keys of its workers are gone, or other users could
            read them.
    """
    with own.lock:
        _only_in_a_client()
        _check_no_own_meshes()
        found = find_kept(name)
        kept, agent = found.kept, found.agent
        if kept is None or agent is None:
            raise SessionError(f"the session {name!r} has just ended")
        other = f"the session {kept.name!r} (host agent {kept.agent_pid})"
        why = mismatch(other, COMPARED, kept.versions)
        if why:
            raise SessionError(f"{why}\nattach with the Python environment that it was made with")
        own.shutdown_context(reason="this process attaches to another session")
        return _attach_to(found, kept.name, AgentProcess(agent.pid, agent.began), take=take)


def _attach_to(found: Found, name: str, agent: AgentProcess, *, take: bool) -> AttachedSession:
    run = client_runtime(new_client_name(), found.directory)
    session = ClientSession(found.directory, agent, run)
    own.adopt(session)  # failures in the session arrive as soon as this process holds it
    kept_session = _kept_session_of(session)
    pid = os.getpid()
    program = process_table.command_of(pid)[:LONGEST_PROGRAM]
    try:
        run.node.link(AGENT, address_of(found.directory, AGENT))
        attached = kept_session.answer(
            lambda number: Attach(number, pid, began_of(pid), program, run.host, take),
            f"cannot attach to the session {name!r}",
        )
        session.on_remote_mesh = partial(_on_remote_mesh, session, kept_session)
        if kept_session.away is not None:
            kept_session.away.attach()
        kept_session.wait_known()
    except BaseException as error:
        # After an interrupt, or without an answer, this process may hold the session: release it.
        ask = _nothing if kept_session.refused else partial(kept_session.ask, Detach)
        try:
            session.release(ask, "this process could not attach to the session", NO_ANSWER_S)
        finally:
            own.drop_session()
        if isinstance(error, SessionError) and "\n" not in str(error):
            raise SessionError(f"cannot attach to the session {name!r}: {error}") from None
        raise
    return cast(AttachedSession, attached)


def _check_no_own_meshes() -> None:
    found = own.current_session()
    if found is None or found.lost is not None:
        return
    if found.kept_as:
        raise SessionError(
            f"this process holds the session {found.kept_as!r}; call detach() to release it"
        )
    names = ", ".join(mesh.name for mesh in owned_meshes())
    if names:
        raise SessionError(
            f"this process has meshes of its own ({names}), and a process has one session: stop "
            "them, or attach in another process"
        )


# --- detach ---------------------------------------------------------------------------------------


def detach() -> None:
    """Release the session that this process holds: kept meshes live on, everything else ends.

    Returns when everything else has ended. Kept meshes cannot be used then, until a process
    attaches.

    Raises:
        SessionError: this process holds no kept session.
    """
    with own.lock:
        session = own.current_session()
        if session is None or not session.kept_as or session.lost is not None:
            raise SessionError("this process holds no kept session; keep(name) makes it one")
        _release(session)


def _release(session: ClientSession) -> None:
    name = session.kept_as
    if not any(shared_procs(mesh).kept for mesh in owned_meshes()):
        own.shutdown_context(reason="nothing is left of what it kept")
        return
    _leave(
        session,
        f"this process has released the session {name!r}; attach({name!r}) attaches to it again",
    )


def _nothing() -> Future[None]:
    return Future[None].of(None)


def _leave(session: ClientSession, why: str) -> None:
    kept_session = _kept_session_of(session)
    try:
        session.release(lambda: kept_session.ask(Detach), why)
    finally:
        own.drop_session()


def _release_kept(session: ClientSession) -> bool:
    if not session.kept_as or session.lost is not None:
        return False
    with own.lock:
        _release(session)
    return True


own.release_kept = _release_kept
mesh_procs.on_kept_mesh_stopped = lambda: own.on_remote_mesh(None)


class InheritedActors(Actors):
    """Actors that another client has spawned. Their class is unpickled when it is first needed."""

    def __init__(self, kept: KeptActors, payload: Payload, procs: ProcsRef, region: Region) -> None:
        self.uid, self.name, self.class_name = kept.actor, kept.name, kept.class_name
        self.procs, self.region = procs, region
        self.owned, self.recorded = True, True
        self.listed_in = None
        self.stopped = None
        self.failures = {f.rank: f for f in kept.failures}
        self._payload = payload.own()
        self._cls: ActorClass | None = None

    @property
    def cls(self) -> ActorClass:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The actor class."""
        if self._cls is None:
            try:
                self._cls = actor_class(unpack_value(self._payload))
            except Exception as error:
                # Attribute lookup of an endpoint leads here, and may raise only this.
                raise AttributeError(
                    f"{self.class_name}, the class of the actor mesh {self.name!r}, cannot be "
                    f"rebuilt in this process ({type(error).__name__}: {error}); make it "
                    "importable here as it was where the mesh was made, and try again"
                ) from error
        return self._cls
