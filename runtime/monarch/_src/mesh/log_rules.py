"""The rules of `ProcMesh.logging_option`: which lines reach the user's streams, and when.

Runs in: a client. The receiving thread holds back lines, and passes them on; the background loop
does when their window ends. The level of `logging` is set in the procs themselves.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from monarch._src.actor.background import background
from monarch._src.actor.future import Future
from monarch._src.actor.refs import ProcsRef
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.state.calls import PendingCall
from monarch._src.events import MeshStopped, Output, OutputLine, bus
from monarch._src.failures.report import RankFailure
from monarch._src.logs.routing import Streaming, Streams
from monarch._src.net.local.interrupt import GuardedLock, uninterrupted
from monarch._src.shape import Region
from monarch._src.wire.frames import Payload
from monarch._src.wire.messages import SetLogLevel


class _LevelQuery(PendingCall):
    """Settles `done` once every rank has confirmed the level or has died."""

    __slots__ = ("done",)

    def __init__(self, ref: ProcsRef, region: Region, done: Future[None]) -> None:
        super().__init__(ref.uid, None, region)
        self.done = done

    def on_answer(self, position: int, payload: Payload) -> None:
        self._settle_if_complete()

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        self._settle_if_complete()

    def on_lost(self, position: int, failure: RankFailure) -> None:
        self._settle_if_complete()

    def _settle_if_complete(self) -> None:
        if not self.owed:
            self.done.settle(lambda: None)


def set_log_level(run: Runtime, ref: ProcsRef, region: Region, level: int) -> Future[None]:
    """Set the log level of these ranks; done when all have confirmed it."""
    done: Future[None] = run.new_future()
    number = run.calls.open(_LevelQuery(ref, region, done))
    for position, rank in enumerate(region.ranks()):
        failure = run.known.dead(ref.uid).get(rank)
        if failure is None:
            if run.node.send(run.routes.route_to(ref, rank), SetLogLevel(number, position, level)):
                continue
            failure = run.known.dead(ref.uid).get(rank)
        if failure is not None:  # otherwise its death notice is on its way
            with uninterrupted(), run.answering:
                run.calls.on_rank_lost(number, position, failure)
    return done


class Sieve:
    """Applies the rules to lines of a process, from the first rule on."""

    def __init__(self, run: Runtime) -> None:
        self._run = run
        self._lock = GuardedLock()
        self._streams = Streams()
        run.agent.output_filter, run.agent.on_flushed = self._on_lines, self._emit_all
        run.closers.append(bus.subscribe(MeshStopped, self._on_mesh_stopped))

    def set(self, mesh: int, ranks: list[int], rule: Streaming) -> None:
        """Apply a rule to these ranks from now on."""
        with self._lock:
            held = self._streams.set(mesh, ranks, rule)
        _emit(held)

    def _on_lines(self, mesh: int, rank: int, lines: list[OutputLine]) -> list[OutputLine]:
        with self._lock:
            now, window_s = self._streams.on_lines(mesh, rank, lines)
        if window_s is not None:
            background.submit(self._emit_after(mesh, window_s))
        return now

    async def _emit_after(self, mesh: int, window_s: float) -> None:
        await asyncio.sleep(window_s)
        with self._lock:
            held = self._streams.due(mesh)
        _emit(held)

    def _emit_all(self) -> None:
        with self._lock:
            held = self._streams.take_all()
        _emit(held)

    def _on_mesh_stopped(self, event: MeshStopped) -> None:
        with self._lock:
            held = self._streams.forget(int(event.uid, 16))
        _emit(held)


def sieve_of(run: Runtime) -> Sieve:
    """The sieve of a runtime, made on first use."""
    with _lock_of_sieves:
        found = _sieves.get(run)
        if found is None:
            found = _sieves[run] = Sieve(run)
        return found


_lock_of_sieves = GuardedLock()
_sieves: WeakKeyDictionary[Runtime, Sieve] = WeakKeyDictionary()


def _emit(lines: list[OutputLine]) -> None:
    if lines:
        bus.emit(Output(tuple(lines), gathered=True))


def checked_rule(stream_to_client: Any, aggregate_window_sec: Any, level: Any) -> Streaming:
    """The arguments of `logging_option`, as a rule.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a window that is not above 0, or a window for lines that are not shown.
    """
    if not isinstance(stream_to_client, bool):
        raise TypeError(f"stream_to_client is True or False, not {stream_to_client!r}")
    if isinstance(level, bool) or not isinstance(level, int):
        raise TypeError(f"level is one of logging's, such as logging.INFO, not {level!r}")
    window = aggregate_window_sec
    if window is None:
        return Streaming(stream_to_client)
    if isinstance(window, bool) or not isinstance(window, (int, float)):
        raise TypeError(f"aggregate_window_sec is a number of seconds or None, not {window!r}")
    if not 0 < window < float("inf"):
        raise ValueError(f"aggregate_window_sec={window}: give a time above 0, or None")
    if not stream_to_client:
        raise ValueError(
            "aggregate_window_sec gathers lines that are shown, and stream_to_client=False shows "
            "none; give one or the other"
        )
    return Streaming(True, float(window))
