"""Process groups of torch that are being made, which end with the other groups of their rank.

To make a gloo group, a rank reads the addresses of its peers from a store, and connects to each
peer. To make a default group, it first connects to that store. If a peer has died, each of these
steps waits for it in C++ until the time-out of the group, and nothing interrupts it there. So a
thread of its own takes the steps, and the caller waits for that thread, or for the end of the
groups of this rank (`rank_watch`). Waits for the store ask it again and again, since a wait in C++
would keep other threads of this process from the store.

A thread that still waits for a peer when the groups end is left to itself, until its time-out.

Runs in: a rank, in place of four names of `torch.distributed.distributed_c10d` from `install` on.
All code that makes groups goes through them: `init_process_group`, `new_group`, DeviceMesh.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from monarch._src.spmd import gloo_sockets, rank_watch
from monarch._src.spmd.collective_errors import Failure, StoreEndedError, failure_of
from monarch._src.spmd.rank_watch import REASON_S, RankWatch
from monarch._src.spmd.stores import FIRST_PAUSE_S, LONGEST_PAUSE_S, abortable
from monarch._src.spmd.torch_modules import distributed_c10d

R = TypeVar("R")
_lock = threading.Lock()


def install() -> None:
    """Have groups that are being made end with those of the active watch. Idempotent.

    Raises as `torch_distributed` does.
    """
    gloo_sockets.install()
    c10d = distributed_c10d()
    _replace(c10d, "rendezvous", _rendezvous)
    _replace(c10d, "_new_process_group_helper", _helper)
    _replace(c10d, "_store_based_barrier", _barrier)
    if hasattr(c10d, "ProcessGroupGloo"):
        _replace(c10d, "ProcessGroupGloo", _gloo)


def _replace(module: Any, name: str, replacement: Callable[[Any], Any]) -> None:
    present = getattr(module, name)
    if not getattr(present, "_monarch_ends_early", False):
        made = replacement(present)
        made._monarch_ends_early = True
        setattr(module, name, made)


def _gloo(base: Any) -> Any:
    class ProcessGroupGloo(base):
        """The one of `gloo_sockets`, whose constructor ends with the groups of this rank."""

        def __init__(self, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> None:
            watch = rank_watch.active()
            if watch is None or size == 1:  # no peer to wait for
                base.__init__(self, store, rank, size, *args, **kwargs)
                return
            own = abortable(store, watch.reason_known, store.timeout)
            until_ended(watch, partial(base.__init__, self, own, rank, size, *args, **kwargs))

    return ProcessGroupGloo


def _helper(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def new_process_group_helper(
        size: int, rank: Any, ranks: Any, backend: Any, store: Any, name: str, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        make = partial(function, size, rank, ranks, backend, store, name, *args, **kwargs)
        watch = rank_watch.active()
        if watch is None:
            return make()
        is_default = not ranks
        try:
            watch.before_making(size if is_default else None)
            with watch.making(_awaited(name, range(size) if is_default else ranks)):
                return make()
        except BaseException:
            if is_default:
                _forget_count()
            raise

    return new_process_group_helper


def _rendezvous(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(function)
    def rendezvous(url: str, rank: int = -1, size: int = -1, **kwargs: Any) -> Iterator[Any]:
        watch = rank_watch.active()
        found = function(url, rank, size, **kwargs)
        if watch is None:
            yield from found
            return
        if size < 0:
            size = int(os.environ.get("WORLD_SIZE", "0"))
        try:
            watch.before_making(size)
            with watch.making(_awaited("0", range(size))):
                place = until_ended(watch, partial(next, found))
        except BaseException:
            _forget_count()
            raise
        yield place
        yield from found

    return rendezvous


def _barrier(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def store_based_barrier(
        rank: int, store: Any, name: str, count: int, timeout: timedelta, *args: Any, **kwargs: Any
    ) -> None:
        watch = rank_watch.active()
        if watch is None:
            function(rank, store, name, count, timeout, *args, **kwargs)
            return
        own = abortable(store, watch.reason_known, timeout)
        with watch.making(_awaited(name, range(count))):
            _explained(watch, partial(function, rank, own, name, count, timeout, *args, **kwargs))

    return store_based_barrier


def _awaited(name: str, ranks: Iterable[int]) -> Iterable[int]:
    """The ranks that make the group with this one, if all of them count it: then a number names it.

    Torch names a group that only its own ranks make by a hash.
    """
    found = tuple(ranks)
    return found if name.isdigit() and len(found) > 1 else ()


def _forget_count() -> None:
    """Have the next default group named as in a process that is new.

    Torch counts a default group that could not be made, and the count is in the name of the next.
    """
    c10d = distributed_c10d()
    if not c10d.is_initialized():
        c10d._world.group_count = 0


def until_ended(watch: RankWatch, step: Callable[[], R]) -> R:
    """Take a step on a thread of its own; raises what the step raises.

    Raises:
        CollectiveError: the groups of this rank have ended meanwhile. The step may still go on.
    """
    return _explained(watch, partial(_on_thread, watch, step))


def _on_thread(watch: RankWatch, step: Callable[[], R]) -> R:
    values: list[R] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            values.append(step())
        except BaseException as error:
            errors.append(error)
        with _lock:
            done.set()
            gloo_sockets.abandoned.discard(threading.get_ident())

    thread = threading.Thread(target=run, name="monarch-makes-group", daemon=True)
    thread.start()
    pause_s = FIRST_PAUSE_S
    try:
        while not done.wait(pause_s):
            watch.raise_if_ended()
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
    except BaseException:  # of a signal or a cancellation too
        with _lock:
            if not done.is_set() and thread.ident is not None:
                gloo_sockets.abandoned.add(thread.ident)
        raise
    if errors:
        raise errors.pop()
    return values.pop()


def _explained(watch: RankWatch, step: Callable[[], R]) -> R:
    """Take a step; its error gives way to the reason for which the groups of this rank ended."""
    try:
        value = step()
    except (RuntimeError, StoreEndedError) as error:
        if failure_of(error) is Failure.CONNECTION:
            watch.reason_known.wait(REASON_S)  # it follows at once, if there is one
        watch.raise_if_ended()
        raise
    # Connections that were made after the groups had ended were not shut down.
    watch.raise_if_ended()
    return value
