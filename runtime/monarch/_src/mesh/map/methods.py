"""`map`, `map_async`, `imap`, `imap_unordered` and `submit` of a ProcMesh, and their actors.

Runs in: any process, on the calling thread. The modules that run a map are loaded by the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from monarch._src.actor.endpoint import actor_class
from monarch._src.actor.serialize import pack_value
from monarch._src.actor.work import WorkFuture
from monarch._src.mesh.actor_spawning import SpawnsActors, extra_payloads
from monarch._src.net.local.leader import FORKED
from monarch._src.net.local.waitable import RuntimeEnded

if TYPE_CHECKING:
    from monarch._src.errors import ItemError, ItemLostError
    from monarch._src.mesh.actor_mesh import ActorMesh
    from monarch._src.mesh.map.driver import MapRun
    from monarch._src.mesh.map.results import MapResults
    from monarch._src.mesh.map.tasks import Ranks, TaskRun, TaskStream
    from monarch._src.wire.frames import Payload

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class MapsItems:
    """Mixed into ProcMesh: a function over items, balanced over the ranks."""

    def _begin_map(self, method: str, *arguments: Any) -> MapRun | None:
        """Check the arguments, spawn the actors of a map, and send the first chunks."""
        raise NotImplementedError

    def _new_work(self, what: str, *, told: bool = False) -> WorkFuture[Any]:
        """The future of work on this mesh that is about to begin; see `WorkFuture`."""
        raise NotImplementedError

    def _task_ranks(self) -> Ranks:
        """The ranks of this mesh, among which submitted functions are spread."""
        raise NotImplementedError

    def _begin_tasks(self, tasks: TaskStream) -> TaskRun:
        """Spawn the actors that run submitted functions."""
        raise NotImplementedError

    def submit(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> WorkFuture[R]:
        """Call `function(*args, **kwargs)` on one rank of this mesh, and return at once.

        The next rank that is idle runs it. While all are busy it waits here, and goes to the rank
        that is free first. A rank counts as idle if it runs no function that was submitted to the
        same mesh or slice. It runs once, unless its rank dies: then it is run on another, as an
        item of `map` is, and has an `ItemLostError` after the deaths of three ranks.

        The function, its arguments and the variables that it uses are taken by this call; an array
        among them must not change before it is done. It finds names of the rank as that of `map`,
        and may be `async def`.

        Returns:
            A future of its value. `cancel()` ends it. It fails with an `ItemError` if the function
            raises, with a `SupervisionError` if no rank is left, or with an `ActorError` if it was
            cancelled.

        Raises:
            TypeError: the first argument is no function, or it or an argument cannot be pickled.
            SupervisionError: no rank is alive.
        """
        from monarch._src.mesh.map.arguments import checked_function, name_of
        from monarch._src.mesh.map.tasks import Task, submit

        called = checked_function("submit", function)
        future = self._new_work(name_of(called))
        submit(self._task_ranks(), Task(future, called, args, kwargs), self._begin_tasks)
        return future

    @overload
    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, chunk_size: int | None = None,
        on_error: Literal["raise"] = "raise", timeout: float | None = None, progress: bool = True,
    ) -> list[R]: ...  # fmt: skip
    @overload
    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, chunk_size: int | None = None,
        on_error: Literal["collect"], timeout: float | None = None, progress: bool = True,
    ) -> list[R | ItemError | ItemLostError]: ...  # fmt: skip
    @overload
    def map(
        self, function: Callable[..., R], items: Iterable[Any], more: Iterable[Any], /,
        *others: Iterable[Any], chunk_size: int | None = None,
        on_error: Literal["raise"] = "raise", timeout: float | None = None, progress: bool = True,
    ) -> list[R]: ...  # fmt: skip
    @overload
    def map(
        self, function: Callable[..., R], items: Iterable[Any], more: Iterable[Any], /,
        *others: Iterable[Any], chunk_size: int | None = None,
        on_error: Literal["collect"], timeout: float | None = None, progress: bool = True,
    ) -> list[R | ItemError | ItemLostError]: ...  # fmt: skip
    def map(
        self, function: Callable[..., Any], items: Iterable[Any], *more: Iterable[Any],
        chunk_size: int | None = None, on_error: Literal["raise", "collect"] = "raise",
        timeout: float | None = None, progress: bool = True,
    ) -> list[Any]:  # fmt: skip
        """Run `function` on each item, on the ranks of this mesh, and wait for all results.

        Of several iterables it takes an item each, as many as the shortest has, as Python's own
        `map` does: `mesh.map(pow, bases, exponents)`.

        A rank that is done gets the next items, so that all ranks are busy to the end. If a rank
        dies, its items are run on others: an item is run at least once, and its function may have
        done part of its work before. The program goes on, without a call of the fault hook. An item
        that was running at the deaths of three ranks is not tried again.

        The function and the variables that it uses travel to each rank once. It also finds names
        that `push`, `scatter` or a cell has bound on the rank, and so does the program's code that
        it wraps or calls. Where both have a name, data of the rank and functions, classes and
        modules of the program count; a warning names variables that differ. It may be `async def`.

        Args:
            items, more: read to the end before the first is sent. Large items travel as arguments
                do.
            chunk_size: how many items a message to a rank has; None: it follows from the time that
                they take.
            on_error: `"raise"` raises the first error that arrives, and cancels the rest;
                `"collect"` puts an `ItemError` or `ItemLostError` in the place of the value.
            timeout: seconds for all items; None: no limit.
            progress: whether a notebook shows a bar.

        Returns:
            The values in the order of the items.

        Raises:
            TypeError: an argument of the wrong type, or one, or an item, that cannot be pickled;
                nothing has been sent.
            ValueError: an argument out of range.
            ItemError: the function has raised for an item, also an exception that is no
                `Exception`; or the item cannot be rebuilt on its rank, or its value here. It has
                the item's index, and the rank.
            ItemLostError: three ranks have died while they ran the same item.
            SupervisionError: no rank is left.
            TimeoutError: the time is up; what ran has been cancelled.
        """
        from monarch._src.mesh.map.driver import run_to_end

        run = self._begin_map(
            "map", function, (items, *more), chunk_size, on_error, timeout, progress
        )
        return [] if run is None else run_to_end(run)

    @overload
    def map_async(
        self, function: Callable[[T], R], items: Iterable[T], *, chunk_size: int | None = None,
        on_error: Literal["raise"] = "raise", timeout: float | None = None, progress: bool = True,
    ) -> WorkFuture[list[R]]: ...  # fmt: skip
    @overload
    def map_async(
        self, function: Callable[[T], R], items: Iterable[T], *, chunk_size: int | None = None,
        on_error: Literal["collect"], timeout: float | None = None, progress: bool = True,
    ) -> WorkFuture[list[R | ItemError | ItemLostError]]: ...  # fmt: skip
    @overload
    def map_async(
        self, function: Callable[..., R], items: Iterable[Any], more: Iterable[Any], /,
        *others: Iterable[Any], chunk_size: int | None = None,
        on_error: Literal["raise"] = "raise", timeout: float | None = None, progress: bool = True,
    ) -> WorkFuture[list[R]]: ...  # fmt: skip
    @overload
    def map_async(
        self, function: Callable[..., R], items: Iterable[Any], more: Iterable[Any], /,
        *others: Iterable[Any], chunk_size: int | None = None,
        on_error: Literal["collect"], timeout: float | None = None, progress: bool = True,
    ) -> WorkFuture[list[R | ItemError | ItemLostError]]: ...  # fmt: skip
    def map_async(
        self, function: Callable[..., Any], items: Iterable[Any], *more: Iterable[Any],
        chunk_size: int | None = None, on_error: Literal["raise", "collect"] = "raise",
        timeout: float | None = None, progress: bool = True,
    ) -> WorkFuture[Any]:  # fmt: skip
        """Run `function` on each item as `map` does, and return at once.

        The map goes on beside the caller, on a thread of this process, also if the future is
        dropped. `cancel()` of the future ends it. All arguments are those of `map`. The function,
        the variables that it uses, and the list of the items are taken by this call; an item itself
        must not change before it is done. If an actor calls this, the map ends with the actor.

        Args:
            timeout: seconds from this call on for all items; None: no limit.
            progress: whether a notebook shows a bar while this cell runs, or one that waits for the
                future.

        Returns:
            A future of the values in the order of the items. It fails with the errors of `map`, or
            with an `ActorError` if it was cancelled.

        Raises:
            TypeError: an argument of the wrong type, or one, or an item, that cannot be pickled;
                nothing has been sent.
            ValueError: an argument out of range.
            SupervisionError: no rank is alive.
        """
        from monarch._src.mesh.map.arguments import name_of
        from monarch._src.mesh.map.driver import run_beside

        future = self._new_work(f"map of {name_of(function)}")
        run = self._begin_map(
            "map_async", function, (items, *more), chunk_size, on_error, timeout, progress
        )
        if run is None:
            future.end_with([])
        else:
            run_beside(run, future)
        return future

    @overload
    def imap(
        self, function: Callable[[T], R], items: Iterable[T], *, chunk_size: int | None = None,
        buffersize: int | None = None, on_error: Literal["raise"] = "raise",
        timeout: float | None = None, progress: bool = True,
    ) -> MapResults[R]: ...  # fmt: skip
    @overload
    def imap(
        self, function: Callable[[T], R], items: Iterable[T], *, chunk_size: int | None = None,
        buffersize: int | None = None, on_error: Literal["collect"],
        timeout: float | None = None, progress: bool = True,
    ) -> MapResults[R | ItemError | ItemLostError]: ...  # fmt: skip
    @overload
    def imap(
        self, function: Callable[..., R], items: Iterable[Any], more: Iterable[Any], /,
        *others: Iterable[Any], chunk_size: int | None = None, buffersize: int | None = None,
        on_error: Literal["raise"] = "raise", timeout: float | None = None, progress: bool = True,
    ) -> MapResults[R]: ...  # fmt: skip
    @overload
    def imap(
        self, function: Callable[..., R], items: Iterable[Any], more: Iterable[Any], /,
        *others: Iterable[Any], chunk_size: int | None = None, buffersize: int | None = None,
        on_error: Literal["collect"], timeout: float | None = None, progress: bool = True,
    ) -> MapResults[R | ItemError | ItemLostError]: ...  # fmt: skip
    def imap(
        self, function: Callable[..., Any], items: Iterable[Any], *more: Iterable[Any],
        chunk_size: int | None = None, buffersize: int | None = None,
        on_error: Literal["raise", "collect"] = "raise",
        timeout: float | None = None, progress: bool = True,
    ) -> MapResults[Any]:  # fmt: skip
        """Run `function` on each item as `map` does; yields the values in the order of the items.

        Items are taken from the iterable as values are yielded, so that it may be endless, and
        values may be larger in total than memory. The first items are taken and sent at once,
        others within `next()`: a caller that asks for no value takes no item. An item is held until
        it is done, and must not change.

        While the iterable blocks, no value is yielded, since both run on the calling thread. If its
        last item took more than 0.1 s, values that are there are yielded before the next is taken,
        and those of running items are waited for a tenth of that time.

        The end of the iteration, an error, `close()` or the collection of the iterator ends the
        map. It does not close an iterable that is a generator.

        Args:
            items, more: any iterables, as those of `map`. An item other than the first that cannot
                be pickled is an error of that item.
            chunk_size: as that of `map`.
            buffersize: how many items are taken and not yet yielded at most; give at least one for
                each rank. None: two seconds of work for each rank, from 4 to 1,024 items a rank and
                about 64 MiB of items and values in all, but a chunk for each rank.
            on_error: as that of `map`. An error that is raised comes after the values of all items
                before it.
            timeout: seconds from the call on for all items; None: no limit.
            progress: whether a notebook shows a bar.

        Raises:
            TypeError: an argument of the wrong type, or one, or the first item, that cannot be
                pickled; nothing has been sent.
            Exception: what the iterable raises, after the values of all items before it.

            And the errors of `map`.
        """
        from monarch._src.mesh.map.results import OrderedMapResults

        return OrderedMapResults(
            self._begin_map(
                "imap", function, (items, *more), chunk_size, on_error, timeout, progress,
                buffersize,
            )
        )  # fmt: skip

    @overload
    def imap_unordered(
        self, function: Callable[[T], R], items: Iterable[T], *, chunk_size: int | None = None,
        buffersize: int | None = None, on_error: Literal["raise"] = "raise",
        timeout: float | None = None, progress: bool = True,
    ) -> MapResults[R]: ...  # fmt: skip
    @overload
    def imap_unordered(
        self, function: Callable[[T], R], items: Iterable[T], *, chunk_size: int | None = None,
        buffersize: int | None = None, on_error: Literal["collect"],
        timeout: float | None = None, progress: bool = True,
    ) -> MapResults[R | ItemError | ItemLostError]: ...  # fmt: skip
    @overload
    def imap_unordered(
        self, function: Callable[..., R], items: Iterable[Any], more: Iterable[Any], /,
        *others: Iterable[Any], chunk_size: int | None = None, buffersize: int | None = None,
        on_error: Literal["raise"] = "raise", timeout: float | None = None, progress: bool = True,
    ) -> MapResults[R]: ...  # fmt: skip
    @overload
    def imap_unordered(
        self, function: Callable[..., R], items: Iterable[Any], more: Iterable[Any], /,
        *others: Iterable[Any], chunk_size: int | None = None, buffersize: int | None = None,
        on_error: Literal["collect"], timeout: float | None = None, progress: bool = True,
    ) -> MapResults[R | ItemError | ItemLostError]: ...  # fmt: skip
    def imap_unordered(
        self, function: Callable[..., Any], items: Iterable[Any], *more: Iterable[Any],
        chunk_size: int | None = None, buffersize: int | None = None,
        on_error: Literal["raise", "collect"] = "raise",
        timeout: float | None = None, progress: bool = True,
    ) -> MapResults[Any]:  # fmt: skip
        """Run `function` on each item as `imap` does; yields each value as it arrives.

        An error that is raised comes after the values that have arrived before it, one of the
        iterable after those of all items. The arguments and errors are those of `imap`.
        """
        from monarch._src.mesh.map.results import MapResults

        return MapResults(
            self._begin_map(
                "imap_unordered", function, (items, *more), chunk_size, on_error, timeout,
                progress, buffersize,
            )
        )  # fmt: skip


class SpawnsMaps(SpawnsActors, MapsItems):
    """Mixed into ProcMesh: the methods that `MapsItems` needs, by actors on the procs."""

    def _new_work(self, what: str, *, told: bool = False) -> WorkFuture[Any]:
        self._check_usable()
        if self._runtime.node.is_fork:
            raise RuntimeEnded(FORKED)
        what = f"{what} on {self._procs.ref.name}"
        return WorkFuture(self._runtime, what, self._procs.ref.uid, told=told)

    def _begin_map(self, method: str, *arguments: Any) -> MapRun | None:
        # Imported here: most programs do without.
        from monarch._src.mesh.map.arguments import checked, refused_function
        from monarch._src.mesh.map.driver import MapRun
        from monarch._src.mesh.map.state.schedule import LONGEST_S
        from monarch._src.mesh.map.worker import Map

        self._check_usable()
        run = self._runtime
        if run.node.is_fork:
            raise RuntimeEnded(FORKED)
        found = checked(method, *arguments)
        # A size that the caller has chosen is kept.
        longest_s = LONGEST_S if found.chunk_size is None else math.inf
        options = {"stops_at_error": found.on_error == "raise", "longest_s": longest_s}
        try:
            payload = pack_value((Map, (found.call,), options, *extra_payloads(self)), own=2)
        except Exception as error:
            refusal, cause = refused_function(method, found, error)
            raise refusal from cause
        if not found.items:
            return None
        actors = self._spawn_for_map("map", Map, payload)
        map_run = MapRun(run, actors, found)
        try:
            map_run.begin()
        except BaseException:  # also an interrupt: ranks must not keep items that no caller reads
            map_run.end(cancel=True)
            raise
        return map_run

    def _task_ranks(self) -> Ranks:
        return self._procs.ref.uid, tuple(self._region.ranks())

    def _begin_tasks(self, tasks: TaskStream) -> TaskRun:
        from monarch._src.mesh.map.tasks import TaskRun
        from monarch._src.mesh.map.worker import Tasks

        options: dict[str, Any] = {}
        payload = pack_value((Tasks, (), options, *extra_payloads(self)), own=2)
        return TaskRun(self._runtime, self._spawn_for_map("submit", Tasks, payload), tasks)

    def _spawn_for_map(self, name: str, kind: type, payload: Payload) -> ActorMesh:
        """Spawn actors on each rank that is alive."""
        dead = self._runtime.known.dead(self._procs.ref.uid)
        skip = {self._region.position(rank) for rank in dead if rank in self._region}
        if len(skip) == len(self._region):
            gone = [dead[rank] for rank in sorted(dead) if rank in self._region]
            raise self._refused(f"the {name} has not begun", gone, "spawn others")
        return self._spawn_on(name, actor_class(kind), payload, skip)
