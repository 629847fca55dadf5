"""The actor of a process group on each rank: it joins, watches and leaves.

Runs in: a rank. Joining blocks, so it has a thread of its own; the actor's loop stays free for the
news that a peer is gone.
Owns: the process groups that it has made, which end with the process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

from monarch._src.actor.context import current
from monarch._src.actor.endpoint import Actor, concurrent_endpoint, endpoint
from monarch._src.errors import CollectiveError
from monarch._src.mesh.actor_mesh import ActorMesh
from monarch._src.mesh.process_group_methods import (
    forget_device_meshes,
    has_device_mesh,
    keep_device_mesh,
)
from monarch._src.spmd import gloo_sockets, group_making
from monarch._src.spmd.group_plan import CPU, JoinPlan, RankLook, backend_names
from monarch._src.spmd.left_calls import (
    call_state,
    calls_of_dead_ranks,
    note_absence,
    note_death,
)
from monarch._src.spmd.rank_watch import RankWatch
from monarch._src.spmd.rendezvous import (
    FilePlace,
    StoreServer,
    TcpPlace,
    remove_file,
    store_at,
)
from monarch._src.spmd.state.group_watch import Absence, CallState
from monarch._src.spmd.stores import abortable
from monarch._src.spmd.torch_modules import (
    device_mesh_module,
    distributed_c10d,
    torch,
    torch_distributed,
)

log = logging.getLogger("monarch.spmd")
R = TypeVar("R")
CHECK_S = 0.005
LONGEST_CHECK_S = 0.1
JOINED_S = 5.0  # within this a join ends after its peer's death, unless gloo waits for that peer
# How long a look waits for a join under way. One whose peer has died ends `JOINED_S` after the news
# of it, which a busy machine brings late.
TURN_S = 30.0
SETTLE_S = 10.0


class JoinTurn:
    """Lets one thread of this process join at a time.

    A join that waits in gloo for a dead peer cannot be interrupted. It is left to its thread
    (`leave_to_thread`), and the next one may begin.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: int | None = None  # the identifier of the thread that joins

    def take(self, *, wait: bool = True) -> bool:
        """Take the turn for this thread.

        Returns False if another thread has it and `wait` is False.

        Raises:
            RuntimeError: this thread's join was left to it before its turn came.
        """
        own = threading.get_ident()
        with self._changed:
            while own not in gloo_sockets.abandoned:
                if self._holder is None:
                    self._holder = own
                    return True
                if not wait:
                    return False
                self._changed.wait()
        raise RuntimeError("the program has not waited for this process group")

    def end(self) -> None:
        """End this thread's turn, unless its join has been left to it."""
        with self._changed:
            if self._holder == threading.get_ident():
                self._set_free()

    @property
    def is_taken(self) -> bool:
        """Whether a thread joins now."""
        return self._holder is not None

    def leave_to_thread(self, thread: int) -> None:
        """Let the next join begin while that thread still waits for a peer that has died."""
        with self._changed:
            gloo_sockets.abandoned.add(thread)
            if self._holder == thread:
                self._set_free()
            else:
                self._changed.notify_all()  # it may wait for its turn

    def wait_free(self, timeout_s: float) -> bool:
        """Wait until no thread joins; returns whether that came within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._holder is None, timeout_s)

    def _set_free(self) -> None:
        self._holder = None
        self._changed.notify_all()


_plan: JoinPlan | None = None  # of the default process group, if a member of this process made it
_store: Any = None  # of it; torch holds the store's C++ half only
_turn = JoinTurn()


def is_of_member() -> bool:
    """Whether the default process group, of which there is one, was not made by other code."""
    return _plan is not None or _turn.is_taken  # torch has it before `_plan` is set


class GroupMember(Actor):
    """One rank's part of a process group."""

    __monarch_label__ = "the process group"
    __monarch_watches__ = True
    __monarch_main_thread__ = "never"

    def __init__(self) -> None:
        context = current.get()
        assert context is not None
        self._rank = context.actor_instance.rank.rank
        self._first = 0  # the number of rank 0 of this mesh in the group
        self._peers: Any = None
        self._watch: RankWatch | None = None
        self._place: FilePlace | TcpPlace | None = None  # of the last join
        self._server: StoreServer | None = None
        # Of this actor, from `watch` on.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.copy_context()
        self._checking: asyncio.Task[None] | None = None

    # --- watching ---------------------------------------------------------------------------------

    @concurrent_endpoint
    async def watch(self, peers: ActorMesh, *, anew: bool) -> str:
        """Watch the process groups of this process; returns why that cannot be done.

        `anew`: as if no group had ended yet, since the program makes others.
        """
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        try:
            await in_thread(torch_distributed)
        except ModuleNotFoundError as error:
            return str(error)
        if anew or self._watch is None or not self._watch.is_active:
            self._renew_watch()
        return ""

    def _renew_watch(self) -> RankWatch:
        self._watch = RankWatch(self._first + self._rank, self._report, self._report_end)
        self._watch.begin()
        group_making.install()
        return self._watch

    def _report(self, absence: Absence) -> None:
        """Tell the peers that an endpoint here has raised. Any thread.

        Sent by this actor: the one that raised would get back messages to peers that are gone.
        """
        assert self._loop is not None
        self._loop.call_soon_threadsafe(
            self._tell_peers, "on_absence", absence, context=self._context
        )

    def _report_end(self, why: str) -> None:
        """Tell the peers that the group of all ranks has ended. Any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(
            self._tell_peers, "on_groups_ended", why, self._place, context=self._context
        )

    def _tell_peers(self, name: str, *news: Any) -> None:
        for point in self._peers.extent.region.ranks():
            if point == self._rank:
                continue
            peer = self._peers.slice(**dict(self._peers.extent.point_of_rank(point)))
            try:
                getattr(peer, name).broadcast(*news)
            except Exception as error:
                log.debug("rank %s was not told: %s", point, error)  # it is gone

    def _handle_undeliverable_message(self, message: object) -> bool:
        return True  # the peer is gone

    @endpoint
    async def on_absence(self, absence: Absence) -> None:
        """A peer's endpoint has raised."""
        self._note_absence(absence)

    def _note_absence(self, absence: Absence) -> None:
        note_absence(absence)
        if self._watch is None or not self._watch.is_active:
            return
        self._watch.state.on_absence(absence, time.monotonic())
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check())

    async def _check(self) -> None:
        pause_s = CHECK_S
        while self._watch is not None and self._watch.state.must_check:
            why = self._watch.check()
            if why is not None:
                self._tell_peers("on_groups_ended", why, self._place)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_CHECK_S)

    @endpoint
    async def on_groups_ended(
        self, why: str, place: FilePlace | TcpPlace | None = None, *, mesh_size: int = 0,
        gone: int = 0,
    ) -> None:  # fmt: skip
        """A peer has died, or has found that a collective waits in vain.

        `place`: of the group that has ended. This rank may have joined the next one already.
        `mesh_size`: of the mesh in which rank `gone` has died; 0 if none has.
        """
        if mesh_size:
            note_death(mesh_size, gone)
        if self._watch is not None and place in (None, self._place):
            self._watch.end_groups(why)

    @concurrent_endpoint
    async def settle(self, absences: Sequence[Absence]) -> None:
        """Wait until no call runs here that a peer has left, or for `SETTLE_S`.

        Peers have left the calls of `absences` by an exception, and others by their death. A call
        that waits in the mailbox of a busy actor would come to a collective of the next group, for
        which no peer comes.
        """
        for absence in absences:
            self._note_absence(absence)
        left = [*(one.call for one in absences), *calls_of_dead_ranks()]
        watch = self._watch
        deadline = time.monotonic() + SETTLE_S
        pause_s = CHECK_S
        # No event tells that a call of another actor has ended. Twice: a call that its actor takes
        # from the mailbox is nowhere for a moment.
        absent_readings = 0
        while absent_readings < 2:
            if all(call_state(one) is CallState.ABSENT for one in left):
                absent_readings += 1
            else:
                absent_readings = 0
            if time.monotonic() > deadline:
                log.info("rank %d still runs a call that a peer has left", self._rank)
                break
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_CHECK_S)
        if watch is not None:
            for key, own in list(watch.reported.items()):
                if own in absences:
                    del watch.reported[key]

    # --- the default process group ----------------------------------------------------------------

    @concurrent_endpoint
    async def look(self, backends: Sequence[str]) -> RankLook:
        """The facts of this rank, and the backends that its torch lacks."""
        return await in_thread(self._look, backends)

    def _look(self, backends: Sequence[str]) -> RankLook:
        host = os.uname().nodename
        try:
            dist = torch_distributed()
        except ModuleNotFoundError as error:
            return RankLook(str(error), host)
        is_joining = not _turn.wait_free(TURN_S)
        made, good = dist.is_initialized(), self._watch is not None and self._watch.is_active
        good = good and self._watch is not None and self._watch.state.ended is None
        good = good and self._watch is not None and not self._watch.has_failed
        return RankLook(
            "", host,
            tuple(one for one in backends if not dist.is_backend_available(one)),
            tuple(
                one
                for one in dist.Backend.backend_list
                if one not in ("undefined", "fake") and dist.is_backend_available(one)
            ),
            _gpus(dist), _plan if made and good else None, made and _plan is None,
            is_joining,
            () if self._watch is None else tuple(self._watch.reported.values()),
            bool(calls_of_dead_ranks()),
        )  # fmt: skip

    @concurrent_endpoint
    async def offer(self) -> TcpPlace:
        """Serve the store of the next group. For rank 0 of a mesh on several hosts."""
        server = await in_thread(partial(StoreServer.open, one_host=False))
        self._server = server
        return TcpPlace(server.host, server.port)

    @concurrent_endpoint
    async def join(self, plan: JoinPlan) -> None:
        """Make the default process group with all peers, in place of an earlier one."""
        self._first, self._place = plan.first, plan.place
        watch = self._renew_watch()
        threads: list[int] = []
        joining = asyncio.ensure_future(in_thread(self._join, plan, watch, threads))
        pause_s = CHECK_S
        while not joining.done():
            # Another thread sets the event.
            ended = watch.reason_known.is_set()
            await asyncio.wait({joining}, timeout=JOINED_S if ended else pause_s)
            if ended and not joining.done():
                joining.add_done_callback(_ignore)
                for thread in threads:
                    _turn.leave_to_thread(thread)
                raise CollectiveError(watch.state.ended or "the process group has ended")
            pause_s = min(pause_s * 1.5, LONGEST_CHECK_S)
        joining.result()

    def _join(self, plan: JoinPlan, watch: RankWatch, threads: list[int]) -> None:
        """Join on this thread, whose identifier is added to `threads`."""
        threads.append(threading.get_ident())
        watch.is_joining = True
        try:
            self._join_here(plan, watch)
        finally:
            watch.is_joining = False
            threads.clear()  # first: another thread may get this identifier
            gloo_sockets.abandoned.discard(threading.get_ident())

    def _join_here(self, plan: JoinPlan, watch: RankWatch) -> None:
        global _plan, _store
        _turn.take()
        try:
            dist = torch_distributed()
            _leave()
            timeout = timedelta(seconds=plan.timeout_s)
            if self._server is not None:
                store, self._server = self._server.store, None
                store.set_timeout(timeout)
            else:
                store = store_at(plan.place, plan.world_size, timeout)
            if set(backend_names(plan.backend)) == {CPU}:
                # NCCL uses the store from threads of its own, for which torch's own is made.
                store = abortable(store, watch.reason_known, timeout)
            device: dict[str, Any] = {}
            rank = plan.first + self._rank
            if plan.devices:
                device["device_id"] = torch().device("cuda", plan.devices[rank])
            dist.init_process_group(
                plan.backend, store=store, rank=rank, world_size=plan.world_size,
                timeout=timeout, **device,
            )  # fmt: skip
            _plan, _store = plan, store
            atexit.unregister(_leave_at_exit)
            atexit.register(_leave_at_exit)
            # Connections that were made after the groups had ended were not shut down.
            watch.raise_if_ended()
        finally:
            _turn.end()

    @concurrent_endpoint
    async def make_device_mesh(
        self, key: str, device_type: str, sizes: tuple[int, ...], labels: tuple[str, ...]
    ) -> None:
        """Make the DeviceMesh of that key with all peers, unless there is one."""
        if has_device_mesh(key):
            return

        def make() -> None:
            made = device_mesh_module().init_device_mesh(device_type, sizes, mesh_dim_names=labels)
            keep_device_mesh(key, made)

        await in_thread(make)

    async def __cleanup__(self, exc: BaseException | None) -> None:
        # The groups stay: other actors may have messages left in which they need them.
        if self._checking is not None:
            self._checking.cancel()
        if self._watch is not None:
            self._watch.close()


async def in_thread(function: Callable[..., R], *args: Any) -> R:
    """Run a function on a daemon thread of its own, which does not hold up the process's end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def settle(value: R | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("R", value))

    def run() -> None:
        value, raised = None, None
        try:
            value = function(*args)
        except BaseException as error:
            raised = error
        try:
            loop.call_soon_threadsafe(settle, value, raised)
        except RuntimeError:
            pass  # the actor has ended, and its loop is closed

    threading.Thread(target=run, name="monarch-process-group", daemon=True).start()
    return await done


def _ignore(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # or the loop would report it


def _leave_at_exit() -> None:
    """At the end of this process, when its actors have ended."""
    if _plan is not None and _turn.take(wait=False):
        _leave()


def _leave() -> None:
    """Destroy the process groups of this process. Call from the thread that has the turn."""
    global _plan, _store
    forget_device_meshes()
    dist = torch_distributed()
    plan, _plan = _plan, None
    if dist.is_initialized():
        dist.destroy_process_group()
    else:
        # Torch counts a group that could not be made, and the count is in the name of the next one,
        # so it would differ from that of a process that is new.
        distributed_c10d()._world.group_count = 0
    _store = None
    if plan is not None and isinstance(plan.place, FilePlace):
        remove_file(plan.place)


def _gpus(dist: Any) -> tuple[str, ...]:
    """The identities of the GPUs that this process sees, in their order; empty without NCCL."""
    if not dist.is_nccl_available():
        return ()
    cuda = torch().cuda
    if not cuda.is_available():
        return ()
    return tuple(str(cuda.get_device_properties(i).uuid) for i in range(cuda.device_count()))
