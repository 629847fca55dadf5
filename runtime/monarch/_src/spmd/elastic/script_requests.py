"""The requests of a training's driver to the script of a rank, which its own thread carries out.

Runs in: a rank of `torchrun`. `enter`, `serve` on the thread of the script, `ask` and `leave` on
that of its `TrainingRank`.
Invariant: one script runs in the process, and it enters once.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._src.mesh.restart_policy import Restart

if TYPE_CHECKING:
    from monarch._src.actor.ports import Port


class Arrival(msgspec.Struct, frozen=True):
    """The script of a rank has come to `ElasticTraining.run`, with these options."""

    rank: int
    backend: str | None
    timeout_s: float
    rejoin_s: float
    step_within_s: float | None
    at_most: int
    has_checkpoint: bool
    restart: Restart


class Request(msgspec.Struct, eq=False):
    """A function to call with the trainer; `done` gets its value, or its error, on that thread."""

    function: Callable[[Any], Any]
    done: Callable[[Any, BaseException | None], None]


class Outcome(msgspec.Struct, eq=False):
    """The training has ended: well, or by this error."""

    error: Exception | None


class ScriptRequests:
    """The queue of this process."""

    def __init__(self) -> None:
        self._port: Port[Arrival] | None = None
        self._rank = self._pid = 0
        self._queue: queue.SimpleQueue[Request | Outcome] = queue.SimpleQueue()

    @property
    def is_open(self) -> bool:
        """Whether a script runs here whose training has a driver."""
        return self._port is not None and self._pid == os.getpid()  # and not in a fork of it

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._rank

    def open(self, rank: int, port: Port[Arrival]) -> None:
        """The script of that rank begins; its arrival is told to the port."""
        self._rank, self._port, self._pid = rank, port, os.getpid()

    def enter(self, arrival: Arrival) -> None:
        """Tell the driver that the script has arrived."""
        assert self._port is not None
        self._port.send(arrival)

    def serve(self, trainer: Any) -> Outcome:
        """Carry out the requests of the driver, until it says that the training has ended.

        Raises:
            BaseException: what a function has raised that is no Exception, such as SystemExit.
        """
        while True:
            asked = self._queue.get()
            if isinstance(asked, Outcome):
                return asked
            try:
                value = asked.function(trainer)
            except Exception as error:
                asked.done(None, error)
            except BaseException as error:
                asked.done(None, RuntimeError(f"the script left its training by {error!r}"))
                raise
            else:
                asked.done(value, None)

    def ask(
        self, function: Callable[[Any], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Have the script call a function, once it has entered and is done with earlier ones."""
        self._queue.put(Request(function, done))

    def leave(self, outcome: Outcome) -> None:
        """Have the script go on behind its training."""
        self._queue.put(outcome)


script_requests = ScriptRequests()
