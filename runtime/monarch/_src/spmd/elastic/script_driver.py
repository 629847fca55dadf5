"""The recovery of a run of torchrun whose script trains in an `ElasticTraining`.

Runs in: the process of `torchrun`. The run's thread enters arrivals; a thread of its own drives.
Invariant: ranks are restarted only while `is_active`.
"""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from monarch._src.actor.inspect.agent_client import AgentGoneError
from monarch._src.actor.runtime import runtime
from monarch._src.errors import ActorError, CollectiveError, RecoveryError
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.spmd.elastic.driver import ElasticDriver, Groups, Recovery
from monarch._src.spmd.elastic.script_requests import Arrival
from monarch._src.spmd.elastic.state.rounds import Rounds
from monarch._src.spmd.elastic.unit import GivenUnit, Unit

log = logging.getLogger("monarch.spmd")
NAME = "training"
AGENT_S = 10.0


class ScriptDriver:
    """The one of a run, whether its script trains so or not."""

    def __init__(self, procs: ProcMesh, on_end: Callable[[], None]) -> None:
        """`on_end` is called when the training has ended, on the thread that drives."""
        self.failure: Exception | None = None  # why the training could not go on
        self.arrivals: dict[int, Arrival] = {}
        self.is_active = False
        self._procs = procs
        self._on_end = on_end
        self._thread: threading.Thread | None = None
        self._unit: Unit | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether some ranks wait for others to arrive."""
        return bool(self.arrivals) and self._thread is None

    def on_arrival(self, arrival: Arrival) -> None:
        """The script of a rank has come to its training. The last one begins it."""
        self.arrivals[arrival.rank] = arrival
        if len(self.arrivals) == len(self._procs) and self._thread is None:
            self.is_active = True
            context = contextvars.copy_context()
            self._thread = threading.Thread(
                target=lambda: context.run(self._drive, self.arrivals[0]),
                name="monarch-elastic-script", daemon=True,
            )  # fmt: skip
            self._thread.start()

    def close(self, why: str) -> None:
        """The run ends: bring no rank back, and let none begin to train again. Idempotent."""
        if self.is_active:
            self.is_active = False
            self._set_restarts(None)
            self._tell_ranks(CollectiveError(why))

    def join(self) -> None:
        """Wait until the thread has ended. The procs have been stopped."""
        if self._thread is not None:
            self._thread.join()

    # --- on its own thread ------------------------------------------------------------------------

    def _drive(self, options: Arrival) -> None:
        outcome: Exception | None = None
        try:
            self._train(options)
        except RecoveryError as error:
            outcome = self.failure = error
        except ActorError as error:  # code of the script has raised, which its rank raises again
            outcome = CollectiveError(str(error))
        except Exception as error:
            log.debug("the training has failed", exc_info=True)
            self.failure = error
            outcome = RecoveryError(f"the ranks could not form a group: {error}")
        if self.is_active:
            self._set_restarts(None)
            self.is_active = False
            self._tell_ranks(outcome)
        self._on_end()

    def _train(self, options: Arrival) -> None:
        self._set_restarts(options)
        actors: Any = self._procs.spawn(NAME, _rank_class())
        self._unit = Unit(1, 0, self._procs, actors)
        rounds = Rounds(
            slots=1, least=1, most=options.at_most, sharded=False,
            has_checkpoint=options.has_checkpoint, spawns_again=False,
        )  # fmt: skip
        groups = Groups(options.backend, options.timeout_s, options.rejoin_s)
        driver = ElasticDriver(
            rounds, GivenUnit(self._unit), groups, options.step_within_s, _tell_of
        )
        try:
            driver.run("train", (), {})
        finally:
            driver.detach()

    # --- the ranks --------------------------------------------------------------------------------

    def _set_restarts(self, options: Arrival | None) -> None:
        """Have the agents bring ranks back as these options say, or not at all."""
        given = next(iter(self.arrivals.values())) if options is None else options
        rule = given.restart.rule()
        if options is None:
            rule = msgspec.structs.replace(rule, most=0)
        try:
            problem = runtime().agent.set_restarts(int(self._procs.uid, 16), rule).get(AGENT_S)
        except (TimeoutError, AgentGoneError) as error:
            problem = str(error)
        if problem and options is not None:
            # Deaths end the run then, as they do without a training.
            log.warning("ranks of %s are not restarted: %s", self._procs.name, problem)

    def _tell_ranks(self, outcome: Exception | None) -> None:
        unit = self._unit
        if unit is None:
            return
        for rank in range(unit.size):
            try:
                # A call, since it is no failure if that rank ends before it.
                unit.one(unit.actors, rank).leave.call_one(outcome)
            except Exception as error:
                log.debug("rank %d was not told of the end: %s", rank, error)  # it is gone


def _rank_class() -> type[Any]:
    from monarch._src.spmd.elastic.training_rank import TrainingRank  # loads asyncio

    return TrainingRank


def _tell_of(formed: Recovery) -> None:
    """Tell a person of a recovery."""
    if formed.why:
        sys.stderr.write(f"monarch torchrun: {formed}\n")
