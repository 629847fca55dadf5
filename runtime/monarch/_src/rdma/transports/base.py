"""The protocol of transports, the choice of one, and the ways in which a copy can fail. No I/O.

A transport is *open* to one peer process once a probe block has been written there and read back
unchanged. It then moves pieces, one-sided: no code of the user runs at the peer, and for `shm` and
`cma` no code at all. A call returns when all its pieces are complete; there is nothing else to
wait for.

There is one Choice for each peer process. A transport is UNTRIED until it has been probed, then
WORKS or FAILED with a reason. Only the last in the order, which works wherever any transport works,
may be tried again after a failure.

    UNTRIED -> WORKS | FAILED     a probe
    WORKS   -> FAILED             a transfer failed, and the handle was not the cause
    FAILED  -> UNTRIED            the last of the order only
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, Literal, Protocol

import msgspec

from monarch._src.rdma.handle import Handle
from monarch._src.rdma.memory import Device, Memory

State = Literal["untried", "works", "failed"]
_MOVES: dict[State, frozenset[State]] = {
    "untried": frozenset(("works", "failed")),
    "works": frozenset(("failed",)),
    "failed": frozenset(("untried",)),
}


class Why(msgspec.Struct, frozen=True):
    """Why a transport is not used, and a remedy, if there is one."""

    reason: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """Reason and remedy, as one sentence."""
        return f"{self.reason} ({self.remedy})" if self.remedy else self.reason


class Choice:
    """The states of the transports to one peer. `order`: fastest first."""

    def __init__(self, order: Sequence[str]) -> None:
        self.order = tuple(order)
        self.story: list[tuple[str, State, str]] = []
        self._states: dict[str, State] = dict.fromkeys(self.order, "untried")
        self._why: dict[str, Why] = {}

    def best(self, suited: Collection[str]) -> str | None:
        """The fastest transport without a known failure, among those that suit the memory."""
        return next((n for n in self.order if n in suited and self._states[n] != "failed"), None)

    def state(self, name: str) -> State:
        """The state of a transport."""
        return self._states[name]

    def worked(self, name: str) -> None:
        """The probe succeeded."""
        if self._states[name] == "untried":
            self._move(name, "works")

    def failed(self, name: str, why: Why) -> None:
        """The probe or a transfer failed. Two transfers at once may both report it."""
        if self._states[name] != "failed":
            self._why[name] = why
            self._move(name, "failed", why.text)

    def give_another_chance(self) -> None:
        """All have failed, and an error has said so: let the next transfer try the last one."""
        last = self.order[-1]
        if self._states[last] == "failed":
            self._move(last, "untried")

    def why_not(self, name: str) -> Why | None:
        """The reason of a failed transport; None if it has not failed."""
        return self._why.get(name) if self._states[name] == "failed" else None

    def whys(self) -> dict[str, str]:
        """The reasons of all failed transports."""
        return {n: self._why[n].text for n in self.order if self._states[n] == "failed"}

    def _move(self, name: str, to: State, reason: str = "") -> None:
        if to not in _MOVES[self._states[name]]:
            raise RuntimeError(f"{name} cannot go from {self._states[name]} to {to}")
        self._states[name] = to
        self.story.append((name, to, reason))

    def validate(self) -> None:
        """Raise AssertionError if the states contradict each other."""
        assert set(self._states) == set(self.order)
        for name, state in self._states.items():
            assert state != "failed" or name in self._why, f"{name} failed without a reason"
            told = [to for told, to, _ in self.story if told == name]
            assert (told[-1] if told else "untried") == state
            assert name == self.order[-1] or "untried" not in told


class Piece(msgspec.Struct, frozen=True, eq=False):
    """`size` bytes between `offset` in a region and `address` in this process, in `local`."""

    handle: Handle
    offset: int
    address: int
    size: int
    local: Memory | None = None


def device_of(piece: Piece) -> Device | None:
    """The GPU of this process that has a piece's memory; None: the host."""
    return None if piece.local is None else piece.local.device


class Transport(Protocol):
    """An open transport to one peer. Several threads may use it at once.

    `piece`: the largest number of bytes for one call, which bounds the time until a transfer can
    end. `streams`: how many calls at once are useful. `at_once`: whether a small call takes no
    longer than a copy, whatever the peer does. `takes_gpus`: whether local memory may be on a GPU;
    otherwise it passes through the host (`gpu_staging`).
    """

    name: ClassVar[str]
    at_once: ClassVar[bool]
    takes_gpus: ClassVar[bool]
    piece: int
    streams: int

    def read_into(self, pieces: Sequence[Piece], deadline: float) -> None:
        """Copy from the regions to this process. Raises the exceptions below."""
        ...

    def write_from(self, pieces: Sequence[Piece], deadline: float) -> None:
        """Copy from this process to the regions. Raises the exceptions below."""
        ...

    def close(self, *, now: bool = False) -> None:
        """Release its resources as its calls end; `now`: calls that wait for the peer fail."""
        ...


class TransportFailed(Exception):
    """This transport failed, and the handle is not the cause: another transport may work."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.why = Why(reason, remedy)


class NotSupported(TransportFailed):
    """The transport cannot reach the memory of these slots, but that of others."""

    def __init__(self, slots: Collection[int], reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.slots = slots


class HandleExpired(Exception):
    """The handle is not valid: its region was dropped or freed, or never existed."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle.text)
        self.handle = handle


class OwnerGone(Exception):
    """The owner's process, or its session, has ended."""


class DeadlineExceeded(Exception):
    """The deadline has passed."""


class Unavailable(Exception):
    """Memory of this process cannot be copied by any transport; the text has the reason."""
