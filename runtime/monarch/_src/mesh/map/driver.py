"""Drives one map: sends chunks to ranks, takes their answers, and gives items of lost ranks away.

Runs in: the calling process, on the thread that takes the results. While that thread does not ask
for results, no item is taken, and no rank is given more than the chunks that it has.
Owns: the mesh of `Map` actors, and the items of a stream, from `begin` until `end`.
Invariants: the arguments have been checked, all items or the first of a stream included, before
`begin` sends anything. After `end` no item is taken and no chunk is sent, and those that run or
wait have been asked to stop. A death is kept from the owner of the mesh if it happens while the map
runs, also if the map ends between the failure of its call and the report to the owner.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from monarch._src.actor.call.call import Endpoint
from monarch._src.actor.call.pickling_errors import unpicklable_item
from monarch._src.actor.call.target import Target
from monarch._src.actor.call.unpickling_errors import unreadable_answer
from monarch._src.actor.errors.remote import unpack_failure
from monarch._src.actor.future import Future
from monarch._src.actor.inspect.safe_repr import live_text
from monarch._src.actor.runtime import Runtime
from monarch._src.actor.state.calls import PendingCall
from monarch._src.actor.work import WorkFuture, begin, cancelled_error
from monarch._src.errors import (
    ActorError,
    ItemError,
    ItemLostError,
    SupervisionError,
    death_error,
)
from monarch._src.failures.report import RankFailure
from monarch._src.mesh.actor_mesh import ActorMesh, call_target_of
from monarch._src.mesh.map import open_maps
from monarch._src.mesh.map.arguments import MapArguments
from monarch._src.mesh.map.calls import (
    ChunkAnswered,
    ChunkAnswers,
    ChunkCall,
    ChunkUnsent,
    RankLost,
    Woken,
)
from monarch._src.mesh.map.handled_deaths import HandledDeaths
from monarch._src.mesh.map.items import ItemStream, estimated_bytes
from monarch._src.mesh.map.name_scopes import Conflicts
from monarch._src.mesh.map.open_maps import OpenMap
from monarch._src.mesh.map.parcels import (
    Parcel,
    UnwrappedClasses,
    bytes_of,
    payload_of,
    unwrapped,
    wrapped,
)
from monarch._src.mesh.map.state.schedule import MOST_IN_FLIGHT, Chunk, MapSchedule
from monarch._src.mesh.map.worker import ALL, ChunkAnswer
from monarch._src.pickling.pickler import is_plain
from monarch._src.shape import Region
from monarch._src.wire.frames import Payload

log = logging.getLogger("monarch.map")
LONGEST_ITEM = 60  # characters of the text of an item
STOP_S = 5.0  # how long the end of a map waits for its actors
PATIENCE = 0.1  # how long results are waited for before a slow item, as a part of its time
LONGEST_PATIENCE_S = 60.0
# By mesh and name of the function: the names whose conflicts were told.
_told: dict[tuple[int, str], set[str]] = {}


class Failed(msgspec.Struct, frozen=True):
    """In place of the value of an item: the error that ends the map."""

    error: Exception


Result = tuple[int, Any]
"""The number of an item, and its value, its error (`on_error="collect"`) or a `Failed`."""


class MapRun:
    """One map over the ranks of a mesh."""

    WHAT = "map"
    UNIT = ("item of the map", "items of the map")
    """An item, and several, as warnings call them."""
    MOST_IN_FLIGHT = MOST_IN_FLIGHT
    """Chunks that a rank has at most: one that runs, and one that waits there."""

    def __init__(self, runtime: Runtime, actors: ActorMesh, arguments: MapArguments) -> None:
        """`actors`: those of `mesh.map.worker`, spawned on every rank that is alive."""
        target = call_target_of(actors)
        self._runtime = runtime
        self._actors = actors
        self._target = target
        self._arguments = arguments
        dead = target.failures_in(target.region)
        living = [rank for at, rank in enumerate(target.region.ranks()) if at not in dead]
        items = arguments.items
        self._stream = items if isinstance(items, ItemStream) else None
        self._schedule = MapSchedule(
            len(items), living, arguments.chunk_size, is_open=self._stream is not None,
            window=arguments.buffersize, most_in_flight=self.MOST_IN_FLIGHT,
            expected=None if self._stream is None else self._stream.expected,
        )  # fmt: skip
        self._feed_at: int | None = None  # how many yields a stream waits for before the next items
        self._endpoints: dict[int, Endpoint[Any, Any]] = {}
        self._calls: dict[int, PendingCall] = {}  # by chunk
        self._lost: list[SupervisionError] = []
        self._deaths = HandledDeaths(
            runtime.ownership, target.procs.uid, frozenset(living), target.uid,
            owned=target.procs.owner == runtime.name,
        )  # fmt: skip
        self._answers = ChunkAnswers(runtime.new_future, self._deaths.note_lost)
        self._losses: dict[int, list[RankFailure]] = {}  # by item
        self._until = None if arguments.timeout is None else monotonic() + arguments.timeout
        self._ended = False
        self.number = runtime.calls.new_number()
        open_maps.add(self.number, self)

    # --- on the thread that takes the results -----------------------------------------------------

    def begin(self) -> None:
        """Send the first chunks. The first item of a slow iterable does not wait for the second."""
        self._feed(waiting=self._stream is None or not self._stream.is_slow)

    def settles(self, future: Future[Any] | None) -> None:
        """The thread that drives this map does so in order to settle that future, if any."""
        self._answers.wait_for(future)

    @property
    def total(self) -> int:
        """The number of items that there are so far."""
        return self._schedule.items

    @property
    def is_complete(self) -> bool:
        """Whether every item has a value or an error, and there are no others."""
        return self._schedule.is_complete

    @property
    def error(self) -> Exception | None:
        """The exception that the iterable of the items has raised, if any."""
        return None if self._stream is None else self._stream.error

    @property
    def has_news(self) -> bool:
        """Whether `news` has anything to do."""
        return self._answers.any_arrived or (self._feed_at is not None and self._feed_at <= 0)

    def on_yielded(self) -> None:
        """The caller is about to yield a result, so another item may be taken."""
        self._schedule.on_yielded()
        if self._feed_at is not None:
            self._feed_at -= 1

    def cut(self, index: int) -> None:
        """Run no item after that one, whose error is the last result."""
        self._schedule.cut(index)

    def drop_items(self) -> None:
        """Take no other items, and drop the iterator. Idempotent."""
        if self._stream is not None:
            self._stream.close()

    def next_results(self) -> Sequence[Result]:
        """Wait for results, and take items meanwhile.

        The list may be empty: the map is complete, or the answer had no result.

        Raises:
            SupervisionError: no rank is left. TimeoutError: the time of the map is up.
            BaseException: the iterable has raised one that is no `Exception`.
        """
        while True:
            if not self._schedule.in_flight:
                raise self._none_left()
            answer = self._next_answer(self._patience())
            if answer is not None:
                results = self._on_answer(answer)
                self._feed(waiting=not results)
                return results
            self._feed(waiting=True)
            if self._schedule.is_complete:
                return ()

    def news(self) -> Sequence[Result]:
        """Return the results that have arrived, without waiting, and send chunks to idle ranks.

        Raises the exceptions of `next_results`.
        """
        answer = self._next_answer(0.0)  # one only: an error of the next one comes after it
        results = () if answer is None else self._on_answer(answer)
        self._feed(waiting=False)
        return results

    def end(self, *, cancel: bool) -> None:
        """Stop the actors, and `cancel` what still runs or is queued. Idempotent."""
        if self._ended:
            return
        self._ended = True
        open_maps.remove(self.number)
        self._deaths.close()
        self.drop_items()
        for pending in list(self._calls.values()):
            self._runtime.cancel(pending)
        try:
            stopped = self._actors.stop("the map has ended")
        except SupervisionError:
            return  # another client holds the session of the mesh, and its actors
        if not cancel:  # so that the next actor may run on the main thread of its process
            stopped.exception(STOP_S)

    def _patience(self) -> float | None:
        """How many seconds to wait for an answer before items are taken; None: take none."""
        stream = self._stream
        if stream is None or not self._schedule.wanted:
            return None
        if not stream.is_slow or not self._schedule.busy_ranks:
            return 0.0
        # Its next item may be long in coming, and holds back the results that arrive meanwhile.
        return min(PATIENCE * stream.last_s, LONGEST_PATIENCE_S)

    def _next_answer(self, wait_s: float | None) -> ChunkAnswered | ChunkUnsent | RankLost | None:
        """The next answer; None: none has arrived within that time. Raises the time-out."""
        while True:
            left = None if self._until is None else max(0.0, self._until - monotonic())
            waits = left if wait_s is None else wait_s if left is None else min(wait_s, left)
            if waits == 0.0 and left != 0.0 and not self._answers.any_arrived:
                return None
            try:
                answer = self._answers.take(waits)
            except TimeoutError:
                if self._until is not None and self._until <= monotonic():
                    raise self._out_of_time() from None
                return None
            if isinstance(answer, Woken):
                if answer.error is not None:
                    raise answer.error
                return None
            if self._schedule.is_in_flight(answer.chunk):  # its rank was not lost before
                return answer

    def _on_answer(self, answer: ChunkAnswered | ChunkUnsent | RankLost) -> Sequence[Result]:
        self._calls.pop(answer.chunk.number, None)
        if isinstance(answer, RankLost):
            results = self._on_rank_lost(answer)
        elif isinstance(answer, ChunkUnsent):
            results = self._on_unsent(answer)
        else:
            results = self._on_answered(answer)
        self._leave_out_dead()
        if self._stream is not None:
            self._stream.drop(index for index, _ in results)
        return results

    def _feed(self, *, waiting: bool) -> None:
        """Take items and hand out chunks. `waiting`: there is no result to yield."""
        stream, schedule = self._stream, self._schedule
        if stream is not None and schedule.is_open:
            if waiting or not stream.is_slow:
                count = stream.take(schedule.wanted)
                if self._ended:  # by the iterable itself
                    return
                schedule.on_taken(count, at_end=stream.at_end)
            self._feed_at = None if stream.is_slow else schedule.yields_until_wanted
        for chunk in schedule.hand_out(waiting=waiting):
            self._send(chunk)
        for chunk in schedule.withdraw():
            if chunk.number in self._calls:  # else it was not sent, since its items have changed
                self._runtime.cancel(self._calls[chunk.number], queued_only=True)

    def _send(self, chunk: Chunk) -> None:
        items = [self._arguments.items[at] for at in chunk.items]
        endpoint = self._endpoints.get(chunk.rank) or self._endpoint_of(chunk.rank)
        try:
            given = self._given(items)
        except Exception as error:  # they have changed since they were checked
            self._answers.put(ChunkUnsent(chunk, error))
            return
        if self._stream is not None:
            nbytes = estimated_bytes(items) if len(given) == 1 else bytes_of(given[1])
            self._schedule.on_sent(nbytes / len(items))

        reader = self._reader_of(chunk)

        def call(target: Target, region: Region, _: Future[Any]) -> PendingCall:
            made = ChunkCall(target, region, chunk, self._answers, reader)
            self._calls[chunk.number] = made
            return made

        endpoint.start(given, {}, call)

    def _given(self, items: list[Any]) -> tuple[Any, ...]:
        """The arguments of the call for a chunk of these items."""
        return (items,) if is_plain(items) else (None, wrapped(items))

    def _reader_of(self, _chunk: Chunk) -> Future[Any] | None:
        """The future that waits for this chunk alone, if any."""
        return None

    def _endpoint_of(self, rank: int) -> Endpoint[Any, Any]:
        region = self._target.region
        point = region.extent.point_of_rank(region.position(rank))
        one: Any = self._actors.slice(**dict(point))
        found = self._endpoints[rank] = cast("Endpoint[Any, Any]", one.run)
        return found

    def _on_answered(self, answer: ChunkAnswered) -> Sequence[Result]:
        chunk = answer.chunk
        try:
            done = cast("ChunkAnswer | None", answer.read())
        except ActorError:
            raise  # of no item: the call was cancelled
        except Exception as unreadable:  # all parcels are readable, so this is every item's
            self._schedule.on_done(chunk, 0.0)
            return [self._failed(at, self._error_here(at, chunk.rank, unreadable))
                    for at in chunk.items]  # fmt: skip
        if done is None:
            self._schedule.on_withdrawn(chunk)
            return []
        self._warn_of(Conflicts(*done.conflicts), self._function_of(chunk))
        if done.failures and done.failures[0][0] == ALL and len(chunk.items) > 1:
            self._schedule.on_split(chunk)
            return []
        results = list(zip(chunk.items, done.values, strict=False))
        for at, packed in done.failures:
            index = chunk.items[max(at, 0)]
            failed = self._failed(index, self._item_error(index, packed))
            results[max(at, 0) : at + 1] = [failed]
        shared = UnwrappedClasses(done.classes)
        for at in done.parcels:
            index = chunk.items[at]
            try:
                results[at] = (index, _read_value(done.values[at], shared))
            except Exception as error:
                results[at] = self._failed(index, self._error_here(index, chunk.rank, error))
        self._schedule.on_done(chunk, done.seconds, done.begun)
        self._schedule.on_received(answer.nbytes / done.begun)
        return results

    def _function_of(self, _chunk: Chunk) -> str:
        """The name of the function that runs a chunk."""
        return self._arguments.name

    def _warn_of(self, conflicts: Conflicts, function: str) -> None:
        """Tell of names that have other values on the ranks, each once for a mesh and function."""
        procs = self._target.procs
        told = _told.setdefault((procs.uid, function), set())
        fresh = [[name for name in names if name not in told]
                 for names in (conflicts.of_rank, conflicts.of_sender)]  # fmt: skip
        told.update(*fresh)
        for text in Conflicts(*fresh).texts(function, procs.name):
            log.warning("%s", text)

    def _on_unsent(self, unsent: ChunkUnsent) -> Sequence[Result]:
        chunk = unsent.chunk
        if len(chunk.items) > 1:
            self._schedule.on_split(chunk)
            return []
        self._schedule.on_done(chunk, 0.0)
        (index,) = chunk.items
        item = self._arguments.items[index]
        refusal = unpicklable_item("map", f"item {index}", item, unsent.error)
        refusal.__cause__ = unsent.error
        return [self._failed(index, self._error_here(index, chunk.rank, refusal))]

    def _failed(self, index: int, error: ItemError | ItemLostError) -> Result:
        """The result of an item with an error."""
        return index, Failed(error) if self._arguments.on_error == "raise" else error

    def _on_rank_lost(self, lost: RankLost) -> Sequence[Result]:
        rank, failure = lost.chunk.rank, lost.error.failures[0]
        if failure.kind == "constructor":  # it would fail on every other rank
            raise lost.error
        back = failure.restarted > 0 and self._target.procs.restarts != "raise"
        running = self._schedule.in_flight.get(rank, [])[:1]
        for item in running[0].items if running else ():
            self._losses.setdefault(item, []).append(failure)
        for chunk in self._schedule.in_flight.get(rank, ()):
            self._calls.pop(chunk.number, None)
        loss = self._schedule.on_rank_lost(rank, comes_back=back)
        if not back:
            self._lost.append(lost.error)
        ranks = len(self._schedule.in_flight)
        if ranks and loss.again:
            count = len(loss.again)
            log.warning(
                "%s; %s run again%s", failure.what,
                f"1 {self.UNIT[0]} is" if count == 1 else f"{count:,} {self.UNIT[1]} are",
                "" if back else f" on the other ranks, of which {ranks:,} are left",
            )  # fmt: skip
        return [self._failed(item, self._lost_error(item)) for item in loss.abandoned]

    def _leave_out_dead(self) -> None:
        """Give no chunk to an idle rank that has died; no item is to blame for its death."""
        target = self._target
        for at, failure in target.failures_in(target.region).items():
            rank = target.region.global_rank(at)
            if self._schedule.in_flight.get(rank) == []:
                self._schedule.on_rank_lost(rank)
                self._lost.append(death_error([target.describe_as_actor(failure, rank)]))

    # --- errors -----------------------------------------------------------------------------------

    def _error_here(self, index: int, rank: int, error: Exception) -> ItemError:
        """The error of an item whose value cannot be rebuilt, or that cannot be pickled, here."""
        procs = self._target.procs
        failure = RankFailure(
            procs.name, rank, dict(procs.extent.point_of_rank(rank)), "", None,
            procs.host_of(rank), None, "endpoint", type(error).__name__, str(error),
        )  # fmt: skip
        return self._item_error_of(index, failure, error)

    def _item_error(self, index: int, packed: bytes) -> ItemError:
        failure, rebuilt = unpack_failure(Payload(packed))
        return self._item_error_of(index, failure, rebuilt())

    def _item_error_of(
        self, index: int, failure: RankFailure, exception: BaseException | None
    ) -> ItemError:
        text = self._item_text(index)
        # In place of the endpoint, which the user does not know.
        named = replace(failure, actor_class=self._call_text(index, text), endpoint=None)
        error = ItemError(exception, failures=[named], index=index, item=text)
        error.__cause__ = exception
        return error

    def _lost_error(self, index: int) -> ItemLostError:
        text, failures = self._item_text(index), self._losses[index]
        remedy = (
            f"each of these {len(failures)} times the rank ran {self._call_text(index, text)}, so "
            "that item is not tried again: look for the cause in it"
        )
        return ItemLostError(failures=failures, remedy=remedy, index=index, item=text)

    def _none_left(self) -> SupervisionError:
        failures = [failure for error in self._lost for failure in error.failures]
        if not failures:
            failures = list(self._target.failures_in(self._target.region).values())
        return SupervisionError(
            failures=failures,
            refusal=f"no rank of {self._target.procs.name} is left for the {self.WHAT}, and "
            f"{self._state_text()} are done",
            remedy='spawn the mesh again, or with restart="on-failure"',
        )

    def _out_of_time(self) -> TimeoutError:
        return TimeoutError(
            f"map: {self._state_text()} are done within {self._arguments.timeout:g} s; the others "
            "have been cancelled"
        )

    def _state_text(self) -> str:
        done, total = self._schedule.done, self._schedule.total
        return f"{done:,} items" if total is None else f"{done:,} of {total:,} items"

    def _item_text(self, index: int) -> str:
        return short_text(live_text(self._arguments.items[index]))

    def _call_text(self, index: int, item: str) -> str:
        return f"{self._arguments.name}(item {index}: {item})"

    # --- from any thread --------------------------------------------------------------------------

    def cancel(self) -> None:
        """Have the driving thread end the map: running items are cancelled, others not begun."""
        text = f"the map of {self._arguments.name} on {self._target.procs.name} was cancelled"
        error = cancelled_error(f"{text}; {self.progress()}")
        self._answers.put_first(Woken(error))

    def open_calls(self) -> frozenset[int]:
        """The numbers of its calls that are open."""
        return frozenset(call.number for call in self._calls.copy().values())

    def progress(self) -> str:
        """How far it is, in words."""
        return f"{self._state_text()} are done"

    @property
    def _is_awaited(self) -> bool:
        """Whether the program waits for results now."""
        return self._answers.next.awaited

    def described(self) -> OpenMap:
        """Its present state, for front ends."""
        schedule, procs = self._schedule, self._target.procs
        late: list[dict[str, int]] = []
        if not schedule.is_open and not schedule.left:
            late = [dict(procs.extent.point_of_rank(rank)) for rank in list(schedule.busy_ranks)]
        return OpenMap(
            number=self.number,
            function=self._arguments.name,
            mesh=procs.name,
            mesh_uid=f"{procs.uid:x}",
            done=schedule.done,
            total=schedule.total,
            late=tuple(late),
            calls=self.open_calls(),
            awaited=self._is_awaited,
            progress=self._arguments.progress,
        )


def _read_value(parcel: Parcel, classes: UnwrappedClasses) -> Any:
    """The value of a parcel.

    Raises:
        TypeError: the value, or a class that it uses, cannot be rebuilt in this process.
    """
    try:
        return unwrapped(parcel, classes)
    except Exception as error:
        text = unreadable_answer("the value that it returned", payload_of(parcel), error)
        raise TypeError(text) from error


def short_text(text: str) -> str:
    """The text of an item, cut to `LONGEST_ITEM` characters."""
    return text if len(text) <= LONGEST_ITEM else f"{text[: LONGEST_ITEM - 3]}..."


def run_to_end(run: MapRun) -> list[Any]:
    """All results in the order of the items."""
    results: list[Any] = [None] * run.total
    complete = False
    try:
        while not run.is_complete:
            for index, value in run.next_results():
                if isinstance(value, Failed):
                    raise value.error
                results[index] = value
        complete = True
    finally:
        run.end(cancel=not complete)
    return results


def run_beside(run: MapRun, future: WorkFuture[list[Any]]) -> None:
    """Settle the future with all results, from a thread that drives the map."""

    def work() -> list[Any]:
        try:
            return run_to_end(run)
        finally:
            run.settles(None)  # or an error, which keeps the map, would keep its own future

    try:
        run.settles(future)
        future.set_under_way(run.cancel, run.open_calls, run.progress)
        begin(future, work)
    except BaseException as error:
        run.end(cancel=True)
        future.end_failed(error)
        raise
