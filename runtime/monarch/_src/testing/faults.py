"""Faults to inject, and what was injected. See `docs/reference/fault_injection.md`.

Signals go through the host agent, which knows what a pid belongs to. Faults on links are carried
out in the procs, which have to have consented: `configure(fault_injection=True)` before their mesh
is spawned. Runs in: the client, any thread but the one that handles messages.
"""

from __future__ import annotations

import os
import signal as signals
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import msgspec

from monarch._src.actor.runtime import Runtime, runtime_or_none
from monarch._src.config import settings
from monarch._src.errors import MessageLostError
from monarch._src.mesh.actor_mesh import ActorMesh, call_target_of
from monarch._src.mesh.client import current_session
from monarch._src.mesh.host_mesh import HostMesh
from monarch._src.mesh.proc_mesh import ProcMesh
from monarch._src.system.process import signal_name
from monarch._src.testing import history as record
from monarch._src.testing import links
from monarch._src.testing.history import FaultInjected, forget_history, history
from monarch._src.testing.plan import KINDS, PlannedFault, plan
from monarch._src.wire.ids import proc_node
from monarch._src.wire.messages import LinkRule

Mesh = ProcMesh | ActorMesh


class MeshGoneError(RuntimeError):
    """There are no processes of that mesh any more: it was stopped, or its host is gone."""


ANSWER_S = 30.0
ONE_HOST = (
    "a host agent and its procs are on one host, with no network between them that could {what}; "
    "give a mesh of procs or actors, or a slice of one"
)

__all__ = [
    "KINDS",
    "FaultInjected",
    "MeshGoneError",
    "MessageLostError",
    "PlannedFault",
    "drop",
    "forget_history",
    "history",
    "kill",
    "partition",
    "plan",
    "play",
    "slow",
    "stopped",
]


# --- processes ------------------------------------------------------------------------------------


def kill(mesh: Mesh | HostMesh, signal: int = signals.SIGKILL) -> tuple[int, ...]:
    """Send every rank of a mesh or slice a signal; returns when they have been sent it.

    A `HostMesh`: the same to its host agent, with which all of its procs end (*host lost*).

    Returns:
        The ranks, in the whole proc mesh, that got it: those that had a process. Of a host, none.

    Raises:
        ValueError: no signal of that number; SIGSTOP, which only `stopped` takes back; a mesh that
            no host agent has, that is, this program itself.
        RuntimeError: there is no session; the mesh is somebody else's.
    """
    signal = signals.Signals(signal)
    if signal == signals.SIGSTOP:
        raise ValueError("a rank that is stopped has to be let go on; use `with stopped(mesh):`")
    if isinstance(mesh, HostMesh):
        running = current_session()
        if running is None or running.lost is not None:
            raise RuntimeError("there is no host agent; spawn something first")
        agent = running.agent_pid
        record.injected("kill", "host agent", (), f"{signal_name(signal)} to pid {agent}")
        os.kill(agent, signal)
        return ()
    target = _Target.of(mesh, "be killed")
    reached = target.signal(target.ranks, signal)
    record.injected("kill", target.name, reached, signal_name(signal))
    return reached


@contextmanager
def stopped(mesh: Mesh) -> Generator[tuple[int, ...], None, None]:
    """The ranks of a mesh stand still (SIGSTOP) within the block: busy to others, not dead.

    Gives the ranks that were stopped. One that dies meanwhile stays dead.

    Raises:
        As `kill`.
    """
    target = _Target.of(mesh, "be stopped")
    reached = target.signal(target.ranks, signals.SIGSTOP)
    number = record.injected("stop", target.name, reached, "SIGSTOP")
    try:
        yield reached
    finally:
        if target.there():
            target.signal(reached, signals.SIGCONT)
        record.lifted(number, "stop", target.name, reached, "SIGCONT")


# --- links ----------------------------------------------------------------------------------------


@contextmanager
def slow(mesh: Mesh, delay: float, *, peer: Mesh | None = None) -> Generator[None, None, None]:
    """Messages to and from the ranks of `mesh` take `delay` seconds longer, each way.

    Args:
        peer: only those to and from these; None: everybody but the ranks of `mesh` themselves.

    Raises:
        ValueError: a delay that is no number of seconds above 0; a mesh on a host that has no
            links.
        RuntimeError: its procs have not consented (`configure(fault_injection=True)`).
    """
    if not 0 < delay < 1e6:
        raise ValueError(f"delay={delay}: give a number of seconds above 0")
    with _on_links("slow", mesh, peer, f"{delay:g} s each way", delay_s=delay):
        yield


@contextmanager
def partition(mesh: Mesh, peer: Mesh | None = None) -> Generator[None, None, None]:
    """No message passes between the ranks of `mesh` and `peer` within the block.

    As on a network that heals, none is lost by it: what was sent meanwhile arrives afterwards, in
    its order. `peer` None: everybody but the ranks of `mesh` themselves. What the host agent says
    and is asked passes: it is on the same host.

    Raises:
        As `slow`.
    """
    with _on_links("partition", mesh, peer, "nothing passes", holds=True):
        yield


@contextmanager
def drop(
    mesh: Mesh,
    fraction: float = 1.0,
    *,
    seed: int = 0,
    peer: Mesh | None = None,
    answers: bool = False,
) -> Generator[None, None, None]:
    """Of the calls that the ranks of `mesh` get, this part is lost within the block.

    The endpoint does not run, and the caller waits, as it would for a message that a network lost.
    At the end of the block whoever still waits gets `MessageLostError`: no wait is for ever.

    Args:
        fraction: 0.1 for one in ten. Each rank draws from `seed` and its own name, so the same
            calls in the same order lose the same ones.
        peer: only calls of these; None: of everybody but the ranks of `mesh` themselves.
        answers: the endpoint runs, and its answer is lost in place of the call.

    Raises:
        ValueError: a fraction that is not above 0 and up to 1; else as `slow`.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction={fraction}: give more than 0, and at most 1 for all")
    what = f"{fraction:.0%} of {'answers' if answers else 'calls'}, seed {seed}"
    with _on_links(
        "drop", mesh, peer, what, loses=fraction, loses_on="out" if answers else "in", seed=seed
    ):
        yield


@contextmanager
def _on_links(
    kind: str,
    mesh: Mesh,
    peer: Mesh | None,
    detail: str,
    *,
    holds: bool = False,
    delay_s: float = 0.0,
    loses: float = 0.0,
    loses_on: str = "in",
    seed: int = 0,
) -> Generator[None, None, None]:
    target = _Target.of(
        mesh, f"be in a {kind}" if kind == "partition" else "lose or delay messages"
    )
    if not settings().fault_injection:
        raise RuntimeError(
            "faults on links are off; call configure(fault_injection=True) before the mesh is "
            "spawned"
        )
    other = None if peer is None else _Target.of(peer, "be a peer of a fault", client=True)
    both = set(target.nodes) & set([] if other is None else other.nodes)
    if both:
        raise ValueError(f"{detail}: {', '.join(sorted(both))} would be on both sides of the link")
    # What procs send each other waits where it comes in, at either side; to and from this program,
    # or everybody, at the one side that can be told.
    mirrored = other is not None and not other.is_client and not loses
    rule = LinkRule(
        next(links.numbers), tuple(target.nodes if other is None else other.nodes), other is None,
        holds, delay_s, loses, loses_on, seed, not mirrored,
    )  # fmt: skip
    ends = [(target, rule)]
    if mirrored and other is not None:
        ends.append((other, msgspec.structs.replace(rule, peers=tuple(target.nodes))))
    for end, _ in ends:
        end.check()
    number = lost = 0
    try:
        for end, its_rule in ends:
            refused = end.tell(add=[its_rule]).refused
            if refused:
                rank, why = min(refused.items())
                raise RuntimeError(f"rank {rank} of {end.name}: {why}")
        number = record.injected(kind, target.name, target.ranks, detail)
        yield
    finally:
        for end, its_rule in ends:
            if end.there():
                lost += end.tell(lift=[its_rule.number]).lost_messages
        if number:
            what = f"{lost} lost" if loses else detail
            record.lifted(number, kind, target.name, target.ranks, what)


# --- plans ----------------------------------------------------------------------------------------


@contextmanager
def play(
    faults: Sequence[PlannedFault], mesh: Mesh | Callable[[], Mesh]
) -> Generator[threading.Event, None, None]:
    """Inject a plan's faults at their times while the block runs, on a thread of its own.

    Faults that still last at the end of the block are lifted then, and those to come are left out.
    A fault that finds its mesh stopped is left out, and noted in the history as on nobody. A rank
    that stands still can be told nothing: faults on its links begin and end when it goes on. Gives
    an event that is set when the last one is over. An error ends the plan, and is raised at the end
    of the block.

    Args:
        mesh: whose ranks the plan means, or a function that gives it at the time of each fault:
            for a mesh that is spawned again.
    """
    player = _Player(faults, mesh if callable(mesh) else lambda: mesh)
    thread = threading.Thread(target=player.run, name="monarch-faults", daemon=True)
    thread.start()
    try:
        yield player.over
    finally:
        player.end()
        thread.join()
    if player.error is not None:
        raise player.error


class _Lasting(NamedTuple):
    """A fault that was injected, and is lifted by closing its stack."""

    fault: PlannedFault
    until: float
    stack: ExitStack


def _is_no_stop(item: _Lasting) -> bool:
    return item.fault.kind != "stop"


def _stands_still(fault: PlannedFault, lasting: Sequence[_Lasting]) -> bool:
    """Whether this is about links of a rank that a fault of the plan has stopped."""
    return fault.kind in ("slow", "partition") and any(
        item.fault.kind == "stop" and item.fault.rank == fault.rank for item in lasting
    )


class _Player:
    def __init__(self, faults: Sequence[PlannedFault], find: Callable[[], Mesh]) -> None:
        self._faults = sorted(faults, key=lambda fault: fault.at_s)
        self._find = find
        self._ended = threading.Event()
        self.over = threading.Event()
        self.error: BaseException | None = None

    def end(self) -> None:
        self._ended.set()

    def run(self) -> None:
        began = time.monotonic()
        lasting: list[_Lasting] = []
        todo = list(self._faults)
        try:
            while (todo or lasting) and not self._ended.is_set():
                now = time.monotonic() - began
                for item in sorted(lasting, key=_is_no_stop):
                    if item.until <= now and not _stands_still(item.fault, lasting):
                        lasting.remove(item)
                        item.stack.close()
                for fault in [fault for fault in todo if fault.at_s <= now]:
                    if not _stands_still(fault, lasting):
                        todo.remove(fault)
                        self._inject(fault, now, lasting)
                # What waits for a rank to go on has its turn when that stop is over.
                times = [fault.at_s for fault in todo if not _stands_still(fault, lasting)]
                times += [i.until for i in lasting if not _stands_still(i.fault, lasting)]
                if times:
                    self._ended.wait(max(0.0, min(times) - (time.monotonic() - began)))
        except BaseException as error:
            self.error = error
        finally:
            for item in sorted(lasting, key=_is_no_stop):
                try:
                    item.stack.close()
                except BaseException as error:
                    self.error = self.error or error
            self.over.set()

    def _inject(self, fault: PlannedFault, now: float, lasting: list[_Lasting]) -> None:
        stack = ExitStack()
        try:
            if self._begin(fault, stack):
                lasting.append(_Lasting(fault, now + fault.for_s, stack))
        except MeshGoneError as error:  # between two lives of it, there is nobody to hit
            record.injected(fault.kind, "nobody", (), str(error))

    def _begin(self, fault: PlannedFault, stack: ExitStack) -> bool:
        mesh = _one_rank(self._find(), fault.rank)
        match fault.kind:
            case "kill":
                kill(mesh)
                return False
            case "stop":
                stack.enter_context(stopped(mesh))
            case "slow":
                stack.enter_context(slow(mesh, fault.delay_s))
            case "partition":
                stack.enter_context(partition(mesh))
            case _:
                raise ValueError(f"{fault.kind}: there are {', '.join(KINDS)}")
        return True


def _one_rank(mesh: Mesh, position: int) -> Mesh:
    """The rank at that place of a mesh, as a mesh."""
    return mesh.slice(**dict(mesh.extent.point_of_rank(position)))


# --- whom it is about -----------------------------------------------------------------------------


class _Target:
    """Processes of one mesh that something is done to."""

    def __init__(self, run: Runtime, mesh: Mesh) -> None:
        self._run = run
        if isinstance(mesh, ActorMesh):
            whom = call_target_of(mesh)
            self._ref, region = whom.procs, whom.region
        else:
            self._ref = mesh._procs.ref  # pyright: ignore[reportPrivateUsage]
            region = mesh._region  # pyright: ignore[reportPrivateUsage]
        self.ranks = tuple(region.ranks())
        self.name = self._ref.name

    @classmethod
    def of(cls, mesh: object, what: str, *, client: bool = False) -> _Target:
        run = runtime_or_none()
        if isinstance(mesh, HostMesh):
            raise ValueError(ONE_HOST.format(what=what))
        if not isinstance(mesh, (ProcMesh, ActorMesh)):
            raise TypeError(f"{mesh!r} is no mesh of procs or actors")
        if run is None:
            raise RuntimeError("the session of that mesh has ended")
        found = cls(run, mesh)
        if found._ref.nodes and not client:
            raise ValueError(f"this program itself cannot {what}; start it as a child, and it can")
        return found

    @property
    def nodes(self) -> list[str]:
        if self._ref.nodes:
            return list(self._ref.nodes)
        return [proc_node(self._ref.uid, rank) for rank in self.ranks]

    @property
    def is_client(self) -> bool:
        return bool(self._ref.nodes)

    def there(self) -> bool:
        """Whether there is still a host agent to ask, and the mesh is not known to be stopped."""
        run, ref = self._run, self._ref
        if run.proc_ref is None:
            running = current_session()
            if running is None or running.runtime is not run or running.lost is not None:
                return False
        return ref.owner != run.name or run.known.ref(ref.uid) is not None

    def signal(self, ranks: Sequence[int], number: int) -> tuple[int, ...]:
        if not ranks:  # none had a process: there is nobody to ask
            return ()
        answer = self._run.agent.signal(self._ref.uid, list(ranks), number).get(ANSWER_S)
        if answer.problem and number != signals.SIGCONT:
            kind = RuntimeError if self.there() else MeshGoneError
            raise kind(f"{self.name}: {answer.problem}")
        return tuple(answer.ranks)

    def check(self) -> None:
        if not self.there():
            raise MeshGoneError(f"{self.name}: the mesh has been stopped, or its host is gone")

    def tell(self, *, add: Sequence[LinkRule] = (), lift: Sequence[int] = ()) -> links.Told:
        dead = self._run.known.dead(self._ref.uid)
        ranks = [rank for rank in self.ranks if rank not in dead]
        return links.tell(self._run, self._ref, ranks, add, lift, ANSWER_S)
