"""The calls of the driver to its workers: batches, and questions to one rank.

Runs in: the client. The receiving thread hands the answers over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from monarch._src.actor.call.responses import OneCall
from monarch._src.actor.call.target import Target, target_of
from monarch._src.actor.errors.remote import error_for, unpack_failure
from monarch._src.actor.future import Future
from monarch._src.actor.serialize import unpack_value
from monarch._src.actor.state.calls import PendingCall
from monarch._src.errors import SupervisionError, death_error
from monarch._src.failures.report import RankFailure
from monarch._src.shape import Region
from monarch._src.tensor.channels.channel import Channel
from monarch._src.tensor.state.losses import Losses
from monarch._src.wire.frames import Payload


class BatchCall(PendingCall):
    """A batch. Its future is done when each rank has run the batch or died, and never fails.

    The call has no endpoint, so front ends neither list nor cancel it. Cancelling a batch that a
    rank has not begun would lose the tensors that the batch makes.
    """

    __slots__ = ("_channel", "_end", "_future", "_losses")

    @property
    def endpoint(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The empty name: front ends do not list this call."""
        return ""

    @endpoint.setter
    def endpoint(self, name: str) -> None:
        pass

    def __init__(
        self, target: Target, region: Region, future: Future[Any], *, channel: Channel,
        losses: Losses, end: int,
    ) -> None:  # fmt: skip
        """`end`: a number above those of all tensors of the batch."""
        super().__init__(target.procs.uid, target, region)
        self._channel = channel
        self._losses = losses
        self._end = end
        self._future = future

    def futures_of(self) -> Sequence[Future[Any]]:
        return (self._future,)

    def on_answer(self, position: int, payload: Payload) -> None:
        self._end_if_last()

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        failure, exception = unpack_failure(payload)
        error = error_for(status, [failure], exception())
        if not isinstance(error, SupervisionError):  # the worker's constructor or an import failed
            error = SupervisionError(failures=[failure])
        self._channel.error = self._channel.error or error
        self._end_if_last()

    def on_lost(self, position: int, failure: RankFailure) -> None:
        rank = self.region.global_rank(position)
        if failure.restarted:
            self._losses.note_batch(rank, failure, self._end)
        else:
            found = target_of(self).describe_as_actor(failure, rank)
            self._channel.error = self._channel.error or death_error([found])
        self._end_if_last()

    def _end_if_last(self) -> None:
        if not self.owed:
            self._future.settle(_nothing)


class ShardBatchCall(BatchCall):
    """A batch whose future takes its value from the answer of the rank at `position`."""

    __slots__ = ("_position", "_read")

    def __init__(
        self, target: Target, region: Region, future: Future[Any], *, channel: Channel,
        losses: Losses, end: int, position: int, read: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        super().__init__(target, region, future, channel=channel, losses=losses, end=end)
        self._position = position
        self._read = read

    def on_answer(self, position: int, payload: Payload) -> None:
        if position == self._position:
            self._future.settle(partial(_read_payload, self._read, payload))

    def on_error(self, position: int, status: int, payload: Payload) -> None:
        super().on_error(position, status, payload)
        if position == self._position and self._channel.error is not None:
            self._future.fail(self._channel.error)

    def on_lost(self, position: int, failure: RankFailure) -> None:
        super().on_lost(position, failure)
        if position == self._position:
            self._future.fail(death_error([failure]))

    def _end_if_last(self) -> None:
        """Do nothing: the rank at `position` settles the future."""


class ShardCall(OneCall):
    """A question to one rank. `read` turns its answer into the value of the future."""

    __slots__ = ("_read",)

    def __init__(
        self, read: Callable[[Any], Any], target: Target, region: Region, future: Future[Any]
    ) -> None:
        super().__init__(target, region, future)
        self._read = read

    def on_answer(self, position: int, payload: Payload) -> None:
        read = self._read
        for future in self.futures_of():
            future.settle(partial(_read_payload, read, payload))


def _read_payload(read: Callable[[Any], Any], payload: Payload) -> Any:
    return read(partial(unpack_value, payload))


def _nothing() -> None:
    return None
