"""Faults to inject, and what was injected. See `docs/reference/fault_injection.md`.

The host agent sends signals, since it knows which process each pid belongs to. Procs inject faults
on their own links, if `configure(fault_injection=True)` was set before their mesh was spawned.

A plan draws a schedule of faults from a seed: the same arguments give the same plan. Its faults
form a Poisson process, as independent failures do.

Runs in: the client, any thread except the receiving thread.
"""

from __future__ import annotations

import itertools
import os
import signal as signals
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import NamedTuple

import msgspec

from monarch._src.actor.endpoint import Actor
from monarch._src.actor.runtime import Runtime, runtime_or_none
from monarch._src.config import settings
from monarch._src.errors import MessageLostError
from monarch._src.events import FaultInjected, bus
from monarch._src.mesh.actor_mesh import ActorMesh, call_target_of
from monarch._src.mesh.client import current_session
from monarch._src.mesh.meshes import HostMesh, ProcMesh, shared_procs
from monarch._src.system.process import signal_name
from monarch._src.testing import link_rules
from monarch._src.wire.ids import proc_node
from monarch._src.wire.messages import LinkRule

MOST = 100_000
_numbers = itertools.count(1)
_history: deque[FaultInjected] = deque(maxlen=MOST)


def _record_begin(kind: str, mesh: str, ranks: Sequence[int], detail: str) -> int:
    """Record that a fault begins; return its number."""
    number = next(_numbers)
    _record(FaultInjected(number, time.time(), kind, mesh, tuple(ranks), detail))
    return number


def _record_end(number: int, kind: str, mesh: str, ranks: Sequence[int], detail: str) -> None:
    """Record that a fault has ended."""
    _record(FaultInjected(number, time.time(), kind, mesh, tuple(ranks), detail, True))


def _record(event: FaultInjected) -> None:
    _history.append(event)
    bus.emit(event)


def history() -> tuple[FaultInjected, ...]:
    """Every fault that this process has injected or lifted, oldest first; the last 100,000."""
    return tuple(_history)


def forget_history() -> None:
    """Clear the history."""
    _history.clear()


Mesh = ProcMesh | ActorMesh | Actor


class MeshGoneError(RuntimeError):
    """The mesh has no processes any more: it was stopped, or its host is gone."""


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
    """Send a signal to every rank of a mesh or slice; return when it has been sent.

    For a `HostMesh`, the signal goes to its host agent; all its procs end with it (*host lost*).

    Returns:
        The ranks in the whole proc mesh that had a process and got the signal; empty for a host.

    Raises:
        ValueError: the signal does not exist, or is SIGSTOP (use `stopped`); or the mesh is this
            program itself, which no host agent manages.
        RuntimeError: there is no session, or another client owns the mesh.
    """
    signal = signals.Signals(signal)
    if signal == signals.SIGSTOP:
        raise ValueError("a stopped rank must be continued later; use `with stopped(mesh):`")
    if isinstance(mesh, HostMesh):
        running = current_session()
        if running is None or running.lost is not None:
            raise RuntimeError("there is no host agent; spawn a mesh first")
        agent = running.agent_pid
        _record_begin("kill", "host agent", (), f"{signal_name(signal)} to pid {agent}")
        os.kill(agent, signal)
        return ()
    target = _Target.of(mesh, "be killed")
    reached = target.signal(target.ranks, signal)
    _record_begin("kill", target.name, reached, signal_name(signal))
    return reached


@contextmanager
def stopped(mesh: Mesh) -> Generator[tuple[int, ...], None, None]:
    """Stop the ranks of a mesh with SIGSTOP within the block; to other processes they seem busy.

    Yields the ranks that were stopped. A rank that dies meanwhile stays dead.

    Raises:
        The errors of `kill`.
    """
    target = _Target.of(mesh, "be stopped")
    reached = target.signal(target.ranks, signals.SIGSTOP)
    number = _record_begin("stop", target.name, reached, "SIGSTOP")
    try:
        yield reached
    finally:
        if target.exists():
            target.signal(reached, signals.SIGCONT)
        _record_end(number, "stop", target.name, reached, "SIGCONT")


# --- links ----------------------------------------------------------------------------------------


@contextmanager
def slow(mesh: Mesh, delay: float, *, peer: Mesh | None = None) -> Generator[None, None, None]:
    """Delay messages to and from the ranks of `mesh` by `delay` seconds each way.

    Args:
        peer: delay only messages to and from this mesh; None: with all processes outside `mesh`.

    Raises:
        ValueError: the delay is not above 0, or the mesh is a host, which has no links.
        RuntimeError: `configure(fault_injection=True)` was not set when the mesh was spawned.
    """
    if not 0 < delay < 1e6:
        raise ValueError(f"delay={delay}: give a number of seconds above 0")
    with _on_links("slow", mesh, peer, f"{delay:g} s each way", delay_s=delay):
        yield


@contextmanager
def partition(mesh: Mesh, peer: Mesh | None = None) -> Generator[None, None, None]:
    """Hold all messages between the ranks of `mesh` and `peer` within the block.

    As on a network that heals, no message is lost: held messages arrive afterwards, in order.
    `peer` None means all processes outside `mesh`. Messages to and from the host agent still pass,
    since it is on the same host.

    Raises:
        The errors of `slow`.
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
    """Lose a fraction of the calls to the ranks of `mesh` within the block.

    The endpoint does not run, and the caller waits, as for a message that a network lost. At the
    end of the block, callers that still wait get `MessageLostError`.

    Args:
        fraction: 0.1 loses one call in ten. Each rank draws from `seed` and its own name, so the
            same calls are lost if they come in the same order.
        peer: lose only calls from this mesh; None: from all processes outside `mesh`.
        answers: run the endpoint and lose its answer instead.

    Raises:
        ValueError: the fraction is not above 0 and at most 1.
        The errors of `slow`.
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
    # Between two meshes, each side holds the messages that it receives. For faults with this
    # program or with all processes, the ranks of `mesh` hold both directions.
    mirrored = other is not None and not other.is_client and not loses
    rule = LinkRule(
        next(link_rules.numbers), tuple((target if other is None else other).nodes), other is None,
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
        number = _record_begin(kind, target.name, target.ranks, detail)
        yield
    finally:
        for end, its_rule in ends:
            if end.exists():
                lost += end.tell(lift=[its_rule.number]).lost_messages
        if number:
            what = f"{lost} lost" if loses else detail
            _record_end(number, kind, target.name, target.ranks, what)


# --- plans ----------------------------------------------------------------------------------------


@contextmanager
def play(
    faults: Sequence[PlannedFault], mesh: Mesh | Callable[[], Mesh]
) -> Generator[threading.Event, None, None]:
    """Inject the faults of a plan at their times while the block runs, on a separate thread.

    At the end of the block, active faults are lifted and later ones are skipped. If the mesh has
    been stopped, a fault is skipped and recorded in the history for mesh "nobody". Faults on the
    links of a stopped rank begin and end when the rank continues. Yields an event that is set when
    the plan is finished. An error ends the plan and is raised at the end of the block.

    Args:
        mesh: the mesh whose ranks the plan names, or a function that returns it at the time of each
            fault, for a mesh that is spawned again.
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
    """An active fault; closing its stack lifts it."""

    fault: PlannedFault
    until: float
    stack: ExitStack


def _is_no_stop(item: _Lasting) -> bool:
    return item.fault.kind != "stop"


def _stands_still(fault: PlannedFault, lasting: Sequence[_Lasting]) -> bool:
    """Whether the fault is on links of a rank that the plan has stopped."""
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
                # Faults that wait for a stopped rank are retried when its stop is lifted.
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
        except MeshGoneError as error:  # the mesh may be spawned again later
            _record_begin(fault.kind, "nobody", (), str(error))

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
                raise ValueError(f"unknown kind {fault.kind!r}; kinds are {', '.join(KINDS)}")
        return True


def _one_rank(mesh: Mesh, position: int) -> Mesh:
    """A mesh of the one rank at `position`."""
    return mesh.slice(**dict(mesh.extent.point_of_rank(position)))


# --- targets --------------------------------------------------------------------------------------


class _Target:
    """The processes of a mesh that a fault is injected into."""

    def __init__(self, run: Runtime, mesh: ProcMesh | ActorMesh) -> None:
        self._run = run
        if isinstance(mesh, ActorMesh):
            target = call_target_of(mesh)
            self._ref, region = target.procs, target.region
        else:
            self._ref = shared_procs(mesh).ref
            region = mesh._region  # pyright: ignore[reportPrivateUsage]
        self.ranks = tuple(region.ranks())
        self.name = self._ref.name

    @classmethod
    def of(cls, mesh: object, what: str, *, client: bool = False) -> _Target:
        run = runtime_or_none()
        if isinstance(mesh, HostMesh):
            raise ValueError(ONE_HOST.format(what=what))
        if not isinstance(mesh, (ProcMesh, ActorMesh)):
            raise TypeError(f"{mesh!r} is not a mesh of procs or actors")
        if run is None:
            raise RuntimeError("the session of the mesh has ended")
        found = cls(run, mesh)
        if found._ref.nodes and not client:
            raise ValueError(
                f"this program itself cannot {what}; run it as a child process instead"
            )
        return found

    @property
    def nodes(self) -> list[str]:
        if self._ref.nodes:
            return list(self._ref.nodes)
        return [proc_node(self._ref.uid, rank) for rank in self.ranks]

    @property
    def is_client(self) -> bool:
        return bool(self._ref.nodes)

    def exists(self) -> bool:
        """Whether a host agent is still there, and the mesh is not known to be stopped."""
        run, ref = self._run, self._ref
        if run.proc_ref is None:
            running = current_session()
            if running is None or running.runtime is not run or running.lost is not None:
                return False
        return ref.owner != run.name or run.known.ref(ref.uid) is not None

    def signal(self, ranks: Sequence[int], number: int) -> tuple[int, ...]:
        if not ranks:  # no rank had a process
            return ()
        answer = self._run.agent.signal(self._ref.uid, list(ranks), number).get(ANSWER_S)
        if answer.problem and number != signals.SIGCONT:
            kind = RuntimeError if self.exists() else MeshGoneError
            raise kind(f"{self.name}: {answer.problem}")
        return tuple(answer.ranks)

    def check(self) -> None:
        if not self.exists():
            raise MeshGoneError(f"{self.name}: the mesh has been stopped, or its host is gone")

    def tell(self, *, add: Sequence[LinkRule] = (), lift: Sequence[int] = ()) -> link_rules.Told:
        dead = self._run.known.dead(self._ref.uid)
        ranks = [rank for rank in self.ranks if rank not in dead]
        return link_rules.tell(self._run, self._ref, ranks, add, lift, ANSWER_S)


KINDS = ("kill", "stop", "slow", "partition")


class PlannedFault(msgspec.Struct, frozen=True):
    """One planned fault: `at_s` seconds after the start, on `rank`, for `for_s` seconds.

    `for_s` is 0 for a kill. `delay_s` is the delay of messages, for `slow`.
    """

    at_s: float
    kind: str
    rank: int
    for_s: float = 0.0
    delay_s: float = 0.0


def plan(
    seed: int,
    *,
    duration: float,
    every: float,
    ranks: int | Sequence[int],
    kinds: Sequence[str] | Mapping[str, float] = ("kill",),
    longest: float = 1.0,
) -> tuple[PlannedFault, ...]:
    """Plan faults for `duration` seconds, one per `every` seconds on average, in order of time.

    Args:
        ranks: the number of ranks, or the ranks that faults may hit.
        kinds: of `kill`, `stop`, `slow`, `partition`; a mapping gives each a weight.
        longest: the maximum of durations and delays in seconds; drawn evenly from a tenth of it.

    Raises:
        ValueError: an unknown kind, or a number out of range.
    """
    weights = dict(kinds) if isinstance(kinds, Mapping) else dict.fromkeys(kinds, 1.0)
    unknown = [kind for kind in weights if kind not in KINDS]
    if unknown or not weights:
        raise ValueError(f"kinds={list(weights)}: give some of {', '.join(KINDS)}")
    chosen = list(range(ranks)) if isinstance(ranks, int) else list(ranks)
    for name, value in (("duration", duration), ("every", every), ("longest", longest)):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}={value}: give a number of seconds above 0")
    if not chosen or min(weights.values()) < 0 or sum(weights.values()) <= 0:
        raise ValueError("give at least one rank, and weights of which one is above 0")
    draw = Random(seed)
    found: list[PlannedFault] = []
    at = draw.expovariate(1 / every)
    while at < duration:
        (kind,) = draw.choices(list(weights), list(weights.values()))
        rank = draw.choice(chosen)
        lasts = draw.uniform(longest / 10, longest)
        delay = draw.uniform(longest / 10, longest)
        found.append(
            PlannedFault(
                at, kind, rank, 0.0 if kind == "kill" else lasts, delay if kind == "slow" else 0.0
            )
        )
        at += draw.expovariate(1 / every)
    return tuple(found)
