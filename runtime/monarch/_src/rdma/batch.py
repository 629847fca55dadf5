"""One submitted batch of transfers, and the error for the user if it fails.

Runs in: the submitting thread makes it; that thread or one of the pool moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import TypeAlias

from monarch._src.actor.attribution import TRANSFERS_TRACK, current_attribution
from monarch._src.actor.state.history import HISTORY
from monarch._src.errors import (
    RDMAError,
    RDMAHandleError,
    RDMAOwnerLostError,
    RDMATimeoutError,
    RDMAUnavailableError,
)
from monarch._src.rdma.cuda.driver import GpuError
from monarch._src.rdma.cuda.stream_sync import QUEUED_FAILED, queued_by, wait_for
from monarch._src.rdma.handle import Handle
from monarch._src.rdma.memory import Queued
from monarch._src.rdma.peer_transports import NoTransport
from monarch._src.rdma.transfer import Lane, Op, Way
from monarch._src.rdma.transports.base import (
    DeadlineExceeded,
    HandleExpired,
    OwnerGone,
    Unavailable,
)

MIB = 1 << 20
# Moves the ops of a lane until a deadline; the list gets the names of the transports tried.
Move: TypeAlias = "Callable[[Lane, Handle, float, list[str]], None]"


class Batch:
    """One batch of transfers."""

    def __init__(
        self, move: Move, ops: Sequence[Op], deadline: float, timeout_s: float,
        progress: Callable[[int], None] | None = None, keep: object = None,
    ) -> None:  # fmt: skip
        """`keep`: an object that has to live as long as the batch.

        Call it on the submitting thread: it records the work that this thread queued on GPUs."""
        self._move = move
        self._keep = keep
        self._progress = progress
        self._ops = ops
        self._deadline = deadline
        self._timeout_s = timeout_s
        self._used: list[str] = []
        self._queued: set[Queued] = set()
        self._failed: GpuError | DeadlineExceeded | None = None
        self._place = None if HISTORY.spans is None else current_attribution()
        try:
            self._queued = queued_by(ops, deadline)
        except (GpuError, DeadlineExceeded) as error:
            self._failed = error

    def run(self) -> BaseException | None:
        """Move the bytes; returns the error, if any."""
        if self._place is None:
            return self._move_all()
        begun_ns = monotonic_ns()
        error = self._move_all()
        HISTORY.add_span(
            self._text(),
            self._place,
            begun_ns,
            monotonic_ns(),
            TRANSFERS_TRACK,
            failed=error is not None,
        )
        return error

    def _text(self) -> str:
        """`rdma read over shm: 4.0 MiB`."""
        ways = "/".join(dict.fromkeys(op.way for op in self._ops))
        over = f" over {self._used[-1]}" if self._used else ""
        return f"rdma {ways}{over}: {sum(op.size for op in self._ops) / MIB:,.1f} MiB"

    def _move_all(self) -> BaseException | None:
        groups: dict[tuple[bytes, Way, bool, bool], list[Op]] = {}
        for op in self._ops:
            key = op.handle.owner.incarnation, op.way, op.handle.shared, op.handle.gpu
            groups.setdefault(key, []).append(op)
        lanes = [(Lane(key[1], ops, self._progress), ops) for key, ops in groups.items()]
        try:
            if self._failed is not None:
                raise self._failed
            wait_for(self._queued, self._deadline)
        except DeadlineExceeded as error:
            op = self._ops[0]
            return self._error_for_user(error, op.way, op.handle, 0)
        except GpuError as error:
            op = self._ops[0]
            return self._error_for_user(
                Unavailable(f"{QUEUED_FAILED}: {error}"), op.way, op.handle, 0
            )
        for lane, ops in lanes:
            handle = ops[0].handle
            try:
                self._move(lane, handle, self._deadline, self._used)
            except Exception as error:
                done = sum(lane.done for lane, _ in lanes)
                return self._error_for_user(error, lane.way, handle, done)
        return None

    def _error_for_user(self, error: Exception, way: Way, handle: Handle, done: int) -> Exception:
        """The error for the user."""
        kind: type[RDMAError]
        match error:
            case HandleExpired():
                handle = error.handle
                kind, reason = RDMAHandleError, _STALE_TEXT
            case OwnerGone():
                kind, reason = RDMAOwnerLostError, str(error)
            case DeadlineExceeded():
                why = f": {error}" if str(error) else ""
                kind, reason = RDMATimeoutError, f"not done within {self._timeout_s:g} s{why}"
            case NoTransport():
                kind, reason = RDMAUnavailableError, f"no transport leads there: {error}"
            case Unavailable():
                kind, reason = RDMAUnavailableError, str(error)
            case _:
                return error  # a warning that the user's filter made an error, or a bug of ours
        total = sum(op.size for op in self._ops)
        transport = self._used[-1] if self._used else None
        many = f" ({len(self._ops)} in one batch)" if len(self._ops) > 1 else ""
        over = f" over {transport}" if transport else ""
        toward = "from" if way == "read" else "to"
        message = (
            f"a {way} of {total:,} bytes{many} {toward} {handle.text} failed{over}: {reason}; "
            f"{done:,} bytes were done"
        )
        return kind(message, handle.text, handle.actor_id, total, done, transport)


_STALE_TEXT = (
    "it was dropped, its memory was freed, or the handle does not belong to that process. Keep the "
    "tensor or array, or the RDMABuffer itself, where it was made, for as long as others use it"
)
