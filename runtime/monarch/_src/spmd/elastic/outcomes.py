"""The outcome of a call on a rank, for the rounds of a training."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from monarch._src.actor.future import Future
from monarch._src.errors import ActorError, RestartedError, SupervisionError
from monarch._src.failures.report import RankFailure
from monarch._src.spmd.elastic.state.rounds import Loss

# Errors of a rank that is in good order itself: a peer is gone, or this process is a new one.
_OF_PEERS = (
    "CollectiveError", "NotReadyError", "RDMAOwnerLostError", "RDMAHandleError", "RDMATimeoutError",
)  # fmt: skip


class Value(msgspec.Struct, frozen=True):
    """The call has returned."""

    value: Any


class Lost(msgspec.Struct, frozen=True):
    """The rank is gone."""

    rank: int
    loss: Loss


class Ended(msgspec.Struct, frozen=True):
    """The call was ended because of a peer."""

    rank: int
    why: str


class Raised(msgspec.Struct, frozen=True):
    """Code of the user has raised."""

    rank: int
    error: BaseException
    why: str


Outcome: TypeAlias = "Value | Lost | Ended | Raised"


def outcome_of(future: Future[Any], *, joins: bool = False) -> Outcome:
    """The outcome of a call that is done. `joins`: errors of torch's backend are of peers too."""
    try:
        return Value(future.get(0))
    except RestartedError as error:
        return Lost(_rank_of(error.failures), Loss(_what(error.failures, error), False))
    except SupervisionError as error:  # a BootstrapError is one, and an ActorError too
        return Lost(_rank_of(error.failures), Loss(_what(error.failures, error), True))
    except ActorError as error:
        rank, what = _rank_of(error.failures), _what(error.failures, error)
        kind = error.failures[0].exception_type if error.failures else ""
        if kind in _OF_PEERS or (
            joins and not isinstance(error.exception, (TypeError, ValueError))
        ):
            return Ended(rank, what)
        return Raised(rank, error, what)


def _rank_of(failures: tuple[RankFailure, ...]) -> int:
    return failures[0].rank if failures else 0


def _what(failures: tuple[RankFailure, ...], error: BaseException) -> str:
    return failures[0].what if failures else str(error)
