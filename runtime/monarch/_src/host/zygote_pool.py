"""The zygotes of a host: has them made, gives them orders and reads their reports.

Runs in: the host agent, on its one thread.
Owns: a socket to each zygote.
Invariants: `host.state.zygotes` makes every decision, and this module carries it out. If a zygote
ends that has procs, or the first, the agent ends. The end of any other costs only its imports.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder

from monarch._src.host.spawn_spec import (
    CannotBegin,
    DropMesh,
    Ended,
    EndZygote,
    Imported,
    Importing,
    MakeZygote,
    MeshSpec,
    NotStarted,
    Spoiled,
    Started,
    ToZygote,
    decode_from_zygote,
    encode,
)
from monarch._src.host.state.zygotes import FIRST, Action, AssignMesh, Make, StopZygote, Zygotes
from monarch._src.host.zygote import LARGEST, seqpacket_pair
from monarch._src.wire.messages import Imports, SpawnProcs

log = logging.getLogger("monarch.agent")
END_S = 1.0
"""How long the agent waits for zygotes to end before it ends itself, in seconds."""


class ZygotePool:
    """The driver of `Zygotes`.

    `watch` has a callback called while a descriptor is readable, until `unwatch`. `on_report` is
    called with what a zygote reports of procs.
    """

    def __init__(
        self,
        first: socket.socket,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], object],
        on_report: Callable[[Started | NotStarted | Ended], None],
    ) -> None:
        self._watch, self._unwatch, self._on_report = watch, unwatch, on_report
        self._inbox = memoryview(bytearray(LARGEST))
        self._sockets: dict[int, socket.socket] = {}
        self._specs: dict[int, MeshSpec] = {}  # of meshes that wait for a zygote
        self._state = Zygotes(os.environ, found_alike)
        self._add(FIRST, first)

    def _add(self, zygote: int, end: socket.socket) -> None:
        self._sockets[zygote] = end
        self._watch(end.fileno(), lambda: self._read(zygote))

    @property
    def importing(self) -> str:
        """The module that a zygote is importing; empty if none is."""
        return self._state.importing

    @property
    def given_up(self) -> dict[str, str]:
        """Modules that no zygote of this host imports any more, and why."""
        return self._state.given_up

    def is_held(self, mesh: int) -> bool:
        """Whether that mesh waits for a zygote."""
        return self._state.zygote_of(mesh) is None

    def of_mesh(self, mesh: int) -> int:
        """The zygote that forks the procs of that mesh."""
        found = self._state.zygote_of(mesh)
        return FIRST if found is None else found

    def import_ahead(self, imports: Imports) -> None:
        """Import these modules for meshes to come."""
        if sys.platform == "linux":
            self._do(self._state.imports_asked(imports, time.monotonic()))

    def mesh_spawned(self, spec: MeshSpec, asked: SpawnProcs) -> None:
        """Choose the zygote of a mesh, at once or when imports that the mesh needs have ended."""
        # A bound process has as many threads as the library found cpus when it was loaded.
        plain = not spec.forks or asked.affinity or spec.preload or sys.platform != "linux"
        self._specs[spec.mesh] = spec
        self._do(
            self._state.mesh_spawned(
                spec.mesh, None if plain else asked.imports, asked.env, time.monotonic(),
                asked.startup_s / 2,
            )
        )  # fmt: skip

    def stop_waiting(self, mesh: int) -> None:
        """Have that mesh wait no longer."""
        self._do(self._state.waited_enough(mesh, time.monotonic()))

    def mesh_freed(self, mesh: int) -> None:
        """Forget a mesh, here and in its zygote."""
        zygote = self._state.zygote_of(mesh)
        if zygote is not None:
            self._order(zygote, DropMesh(mesh))
        self._specs.pop(mesh, None)
        self._do(self._state.mesh_freed(mesh, time.monotonic()))

    def next_deadline(self) -> float | None:
        """When `time_passed` has something to do, or None."""
        return self._state.next_deadline()

    def time_passed(self, now: float) -> None:
        """See `Zygotes.time_passed`."""
        self._do(self._state.time_passed(now))

    def close(self) -> None:
        """End all zygotes but the first, which the caller ends. Bounded in time."""
        for end in self._state.all_made():
            self._order(end.parent, EndZygote(end.zygote))
        deadline = time.monotonic() + END_S
        for zygote, own in self._sockets.items():
            while zygote != FIRST and _is_readable(own, deadline) and self._receive(own):
                pass

    def tell(self, zygote: int, message: ToZygote, fds: Sequence[int] = ()) -> None:
        """Send a message to a zygote, with these descriptors.

        Raises:
            OSError: the message is too large, or the kernel passes no more descriptors.
        """
        data = encode(message)
        if len(data) > LARGEST:  # a truncated message would end the zygote
            raise OSError(
                errno.EMSGSIZE,
                f"its start message has {len(data)} bytes, more than the limit of {LARGEST}; "
                "pass less in its environment",
            )
        # The starter's window bounds the queue, so this blocks briefly or the zygote is dead.
        socket.send_fds(self._sockets[zygote], [data], fds)

    def _order(self, zygote: int, message: ToZygote, fds: Sequence[int] = ()) -> None:
        """As `tell`. A zygote that has just ended gets no message; its end is read next."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.tell(zygote, message, fds)

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Make():
                    self._make(action)
                case StopZygote(parent, zygote):
                    self._order(parent, EndZygote(zygote))
                    self._remove(zygote)
                case AssignMesh(mesh, zygote):
                    self._order(zygote, self._specs.pop(mesh))

    def _make(self, make: Make) -> None:
        log.info("a zygote imports %s", ", ".join(make.modules))
        try:
            own, theirs = seqpacket_pair()
        except OSError as error:
            why = f"no zygote can be made: {error.strerror}"
            self._do(self._state.zygote_lost(make.zygote, why, time.monotonic()))
            return
        self._add(make.zygote, own)
        order = MakeZygote(make.zygote, list(make.modules), make.path, make.env)
        self._order(make.parent, order, [theirs.fileno()])
        theirs.close()

    def _remove(self, zygote: int) -> None:
        own = self._sockets.pop(zygote)
        self._unwatch(own.fileno())
        own.close()

    def _receive(self, own: socket.socket) -> bytes:
        """The next message; empty if the zygote has ended."""
        try:
            return bytes(self._inbox[: own.recv_into(self._inbox, 0, socket.MSG_DONTWAIT)])
        except ConnectionResetError:
            return b""

    def _messages(self, zygote: int) -> Iterator[bytes]:
        """The messages of a zygote that have arrived; empty bytes if it has ended."""
        while zygote in self._sockets:
            try:
                data = self._receive(self._sockets[zygote])
            except BlockingIOError:
                return
            yield data

    def _read(self, zygote: int) -> None:
        for data in self._messages(zygote):
            if not data:
                self._on_end(zygote)
                return
            message = decode_from_zygote(data)
            now = time.monotonic()
            match message:
                case CannotBegin():
                    log.error("the modules that procs need cannot be loaded: %s", message.why)
                    os._exit(70)
                case Importing():
                    self._state.import_began(zygote, message.module, now)
                case Imported():
                    self._do(self._state.import_ended(zygote, message.reads, now))
                case Spoiled():
                    self._give_up(zygote, message.why, now)
                case Started() | NotStarted() | Ended():
                    self._on_report(message)

    def _on_end(self, zygote: int) -> None:
        if zygote == FIRST or self._state.has_meshes(zygote):
            log.error("the zygote is gone; every proc of this host went with it")
            os._exit(70)
        self._give_up(zygote, "the process that imported it has ended", time.monotonic())

    def _give_up(self, zygote: int, why: str, now: float) -> None:
        known = set(self._state.given_up)
        self._remove(zygote)  # it reads end-of-file, and ends
        actions = self._state.zygote_lost(zygote, why, now)
        for module in self._state.given_up.keys() - known:
            log.warning("procs import %s for themselves from now on: %s", module, why)
        self._do(actions)


def found_alike(modules: Collection[str], one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether modules are found in the same places along two import paths.

    The paths are of clients; this Python's own path follows each.
    """
    if list(one) == list(other):
        return True
    tops = {module.partition(".")[0] for module in modules}
    return all(_origin(top, one) == _origin(top, other) for top in tops)


def _origin(top: str, path: Sequence[str]) -> str | None:
    found = PathFinder.find_spec(top, [*path, *sys.path])
    return None if found is None else found.origin


def _is_readable(own: socket.socket, deadline: float) -> bool:
    poller = select.poll()
    poller.register(own, select.POLLIN)
    return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1e3))
