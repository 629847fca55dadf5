"""The sockets of this process's gloo groups, which end a collective when they are shut down.

Gloo has no way to abort: a thread that waits in a collective is woken by its data, by its time-out
(minutes), or by the end of a connection. So the connections are shut down. They are found when a
group is made: a gloo group has all its connections when its constructor returns, and the sockets
that appear in between are the group's. Socket numbers are reused, so the identity of each is
checked before it is shut down.

No write may fail on the way: gloo forgets a send whose write fails while it answers a peer that is
ready to receive, and the collective then waits for its time-out. So connections are shut down for
reading only, which gives gloo the end of the stream once it has read what has arrived. And they
are kept open when gloo closes its ends, since a peer that still writes would be answered by a
reset. The next group closes them: its ranks have left the collectives of the one before.

Runs in: a rank, in place of `torch.distributed.ProcessGroupGloo` from `install` on.
Owns: the connections that were shut down, until the next group is made. Gloo closes the others.
"""

from __future__ import annotations

import os
import socket
import stat
from typing import Any

from monarch._src.spmd.torch_modules import distributed_c10d

_Identity = tuple[int, int]
_sockets: dict[_Identity, int] = {}
kept_open: list[socket.socket] = []  # that were shut down
# The connections that there were before each group that is being made.
_in_progress: list[dict[_Identity, int]] = []
_FDS = "/dev/fd"


def install() -> None:
    """Have the sockets of gloo groups recorded from now on. Idempotent.

    Groups that were made before are not known. Raises as `torch_distributed` does.
    """
    c10d = distributed_c10d()
    base: Any = getattr(c10d, "ProcessGroupGloo", None)
    if base is None or getattr(base, "_monarch_records_sockets", False):
        return

    class ProcessGroupGloo(base):
        """Torch's own, with the sockets of each group recorded."""

        _monarch_records_sockets = True

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            before, ended = _connections(), kept_open.copy()
            _in_progress.append(before)
            try:
                super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]
                _record(before)
                _close(ended)
            finally:
                _in_progress.remove(before)

    c10d.ProcessGroupGloo = ProcessGroupGloo


def shut_down() -> int:
    """Shut down the connections of all groups, those being made included. Any thread.

    Returns how many there were.
    """
    count = 0
    for before in _in_progress:
        _record(before)
    for identity, fd in list(_sockets.items()):
        _sockets.pop(identity, None)
        try:
            copy = os.dup(fd)
        except OSError:
            continue  # closed
        status = os.fstat(copy)
        if (status.st_dev, status.st_ino) != identity:
            os.close(copy)
            continue
        connection = socket.socket(fileno=copy)
        kept_open.append(connection)
        try:
            connection.shutdown(socket.SHUT_RD)
            count += 1
        except OSError:
            pass  # the other side has ended it
    return count


def _close(ended: list[socket.socket]) -> None:
    for connection in ended:
        connection.close()  # idempotent: another thread may make a group too
    kept_open[:] = [one for one in kept_open if one not in ended]


def _record(before: dict[_Identity, int]) -> None:
    now = _connections()
    for identity in [one for one in _sockets if one not in now]:
        _sockets.pop(identity, None)  # another thread may have removed it
    _sockets.update({one: fd for one, fd in now.items() if one not in before})


def _connections() -> dict[_Identity, int]:
    """The TCP connections of this process."""
    found: dict[_Identity, int] = {}
    for name in os.listdir(_FDS):
        try:
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode) and _is_connection(int(name)):
                found[status.st_dev, status.st_ino] = int(name)
        except OSError:
            continue  # closed meanwhile, as that of the listing itself is
    return found


def _is_connection(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as copy:
        return (
            copy.family in (socket.AF_INET, socket.AF_INET6)
            and copy.type == socket.SOCK_STREAM
            and not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        )
