"""The sockets of this process's gloo groups, which end a collective when they are shut down.

Gloo has no way to abort: a thread that waits in a collective is woken by its data, by its time-out
(minutes), or by the end of a connection. So the connections are shut down.

Which sockets are gloo's is known by their addresses. Each rank listens at an address that it tells
the others through the store of the group. So a gloo connection has an address from the store at one
of its ends, and a connection of the program has none. The store of each group is wrapped to keep
those addresses.

No write may fail on the way: gloo forgets a send whose write fails while it answers a peer that is
ready to receive, and the collective then waits for its time-out. So connections are shut down for
reading only, which gives gloo the end of the stream once it has read what has arrived. And they
are kept open when gloo closes its ends, since a peer that still writes would be answered by a
reset. The next group closes them: its ranks have left the collectives of the one before. For the
same reason the host agent has a copy of each connection, which outlives a rank that dies
(`agent_part`).

A rank that waits for a peer to connect has no connection to shut down. If that peer has died, gloo
waits for its time-out. The caller leaves such a group to its thread (`abandoned`).

The C functions are called for addresses: a `socket.socket` on a descriptor of the program would set
`O_NONBLOCK` on it if there is a default time-out.

Runs in: a rank, in place of `torch.distributed.ProcessGroupGloo` and `destroy_process_group` from
`install` on.
Owns: the connections that were shut down, until the next group is made. Gloo closes the others.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monarch._src.actor.runtime import runtime_or_none
from monarch._src.spmd.socket_updates import encode, updates
from monarch._src.spmd.stores import forwarding_store
from monarch._src.spmd.torch_modules import distributed_c10d, torch_distributed
from monarch._src.wire.ids import AGENT
from monarch._src.wire.messages import KeepSockets

log = logging.getLogger("monarch.spmd")
CONNECT_S = 10.0  # how long the agent may take to connect, and to take an update

kept_open: list[int] = []  # descriptors that were shut down
# The identifiers of threads that make a group which the program no longer waits for. The group must
# not become the default one of the process, should it be made after all.
abandoned: set[int] = set()
# Of the gloo groups of this process: what their ranks have told each other, and their stores, which
# gloo may use again.
_told: set[bytes] = set()
_stores: list[Any] = []
_FDS = "/dev/fd"
_ADDRESS_BYTES = 128  # of a `sockaddr_storage`
# The bytes of a `sockaddr_in` and a `sockaddr_in6` with family, port and address.
_LENGTHS: dict[int, int] = {socket.AF_INET: 8, socket.AF_INET6: 24}
_libc = ctypes.CDLL(None, use_errno=True)


def install() -> None:
    """Have the addresses of gloo groups kept from now on. Idempotent.

    Groups that were made before are not known. Raises as `torch_distributed` does.
    """
    c10d = distributed_c10d()
    base: Any = getattr(c10d, "ProcessGroupGloo", None)
    if base is None or getattr(base, "_monarch_keeps_addresses", False):
        return

    class ProcessGroupGloo(base):
        """Torch's own, with a store that keeps the addresses of the ranks."""

        _monarch_keeps_addresses = True

        def __init__(self, store: Any, *args: Any, **kwargs: Any) -> None:
            if not c10d._world.pg_map:
                _told.clear()  # the ports of groups that are gone may be another program's
                _stores.clear()
            ended, keeping = kept_open.copy(), _keeping(store)
            _stores.append(keeping)
            super().__init__(keeping, *args, **kwargs)  # pyright: ignore[reportUnknownMemberType]
            if threading.get_ident() in abandoned:
                raise RuntimeError("the program has not waited for this process group")
            _close(ended)
            _copies.update()

    destroy = c10d.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        try:
            destroy(*args, **kwargs)
        finally:
            _copies.update()

    c10d.ProcessGroupGloo = ProcessGroupGloo
    c10d.destroy_process_group = destroy_process_group
    torch_distributed().destroy_process_group = destroy_process_group
    _copies.begin()


class _Copies:
    """The copies that the host agent has of this process's gloo connections. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._agent: socket.socket | None = None
        self._kept: set[bytes] = set()
        self._pid = 0  # of the process whose connections are kept, not of one that it has forked

    def begin(self) -> None:
        """Keep copies of this process's connections from now on."""
        self._pid = os.getpid()
        atexit.register(self.release)

    def update(self) -> None:
        """Have the agent keep copies of the connections that there are now, and of no others."""
        with self._lock:
            found: dict[bytes, int] = {}
            for fd in _sockets():
                ends = _ends(fd)
                if _is_told(ends):
                    found[b"".join(ends)] = fd
            self._tell(found)

    def release(self) -> None:
        """Have the agent close all copies: this process ends in order."""
        with self._lock:
            self._tell({})

    def _tell(self, found: Mapping[bytes, int]) -> None:
        if set(found) == self._kept or os.getpid() != self._pid:
            return
        try:
            agent = self._agent or self._connected()
            if agent is None:
                return
            self._agent = agent
            for update in updates(self._kept, found):
                socket.send_fds(agent, [encode(update)], [found[key] for key in update.keep])
        except OSError as error:
            # Its death may then leave a peer waiting for the time-out of the group.
            log.warning("the host agent keeps no copies of this rank's connections: %s", error)
            self._pid = 0
        self._kept = set(found)

    def _connected(self) -> socket.socket | None:
        """A connection to the agent; None where there is none, or no socket that fits."""
        run = runtime_or_none()
        if run is None or sys.platform != "linux":
            return None
        path = os.path.join(run.directory, f"{os.getpid()}.keep")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.settimeout(CONNECT_S)
            listener.bind(path)
            try:
                listener.listen(1)
                if not run.node.send(AGENT, KeepSockets(path)):
                    return None
                agent, _ = listener.accept()
            finally:
                os.unlink(path)
        agent.settimeout(CONNECT_S)
        return agent


_copies = _Copies()


def shut_down() -> int:
    """Shut down the connections of all groups, those being made included. Any thread.

    Returns how many there were.
    """
    count = 0
    for fd in _sockets():
        if not _is_of_gloo(fd):
            continue
        try:
            copy = os.dup(fd)
        except OSError:
            continue  # closed
        if not _is_of_gloo(copy):  # closed, and its number was given to another one
            os.close(copy)
            continue
        kept_open.append(copy)
        if _libc.shutdown(copy, socket.SHUT_RD) == 0:  # else the other side has ended it
            count += 1
    return count


def _close(ended: Sequence[int]) -> None:
    for fd in ended:
        if fd in kept_open:  # another thread may make a group too
            kept_open.remove(fd)
            os.close(fd)


def _sockets() -> list[int]:
    found: list[int] = []
    for name in os.listdir(_FDS):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(int(name))
        except OSError:
            continue  # closed meanwhile, as that of the listing itself is
    return found


def _is_of_gloo(fd: int) -> bool:
    """Whether it is a connection with an address at one of its ends that a rank has told."""
    return _is_told(_ends(fd))


def _ends(fd: int) -> tuple[bytes, bytes]:
    return _address(_libc.getsockname, fd), _address(_libc.getpeername, fd)


def _is_told(ends: tuple[bytes, bytes]) -> bool:
    # A listening socket has no peer.
    return all(ends) and any(end in text for end in ends for text in list(_told))


def _address(function: Callable[..., int], fd: int) -> bytes:
    """The family, port and address of one end of a TCP socket; empty if it has none."""
    buffer = ctypes.create_string_buffer(_ADDRESS_BYTES)
    size = ctypes.c_uint32(_ADDRESS_BYTES)
    if function(fd, buffer, ctypes.byref(size)) != 0:
        return b""
    # Two bytes for the family, or one after the length of the address, as on macOS.
    family: int = struct.unpack("=H" if sys.platform == "linux" else "xB", buffer.raw[:2])[0]
    return buffer.raw[: _LENGTHS.get(family, 0)]


def _keeping(inner: Any) -> Any:
    """A store over `inner` that keeps the values which pass through it."""
    base: Any = forwarding_store()

    class KeepingStore(base):
        """See the module."""

        def set(self, key: str, value: Any) -> None:
            _keep(value)
            inner.set(key, value)

        def get(self, key: str) -> Any:
            value = inner.get(key)
            _keep(value)
            return value

    return KeepingStore(inner)


def _keep(value: Any) -> None:
    if isinstance(value, bytes):
        _told.add(value)
