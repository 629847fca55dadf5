"""The ranks of a run of torchrun while their script runs.

Runs in: the process of `torchrun`, on its thread.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, TypeAlias

from monarch._src.actor.future import Future
from monarch._src.actor.inspect.agent_client import AgentGoneError
from monarch._src.actor.ports import PortReceiver
from monarch._src.actor.runtime import runtime
from monarch._src.actor.state.calls import PendingCall
from monarch._src.errors import ActorError, RecoveryError, RestartedError, SupervisionError
from monarch._src.mesh.meshes import ProcMesh
from monarch._src.spmd.elastic.script_driver import ScriptDriver
from monarch._src.spmd.elastic.script_requests import Arrival
from monarch._src.system.process import signal_name

FAIL_TOO_S = 1.0
"""How long the other ranks have to fail by themselves once one has failed, in seconds."""
NOTE_S = 2.0
"""The time in seconds after which the run tells a person that it waits, and for which ranks."""
POLL_S = 0.5  # between two checks of a wait that the session has not ended

Failure: TypeAlias = "ActorError | SupervisionError"
# An answer, an arrival, None: the training has ended; an interrupt, which is raised.
_Event: TypeAlias = "Future[Any] | KeyboardInterrupt | None"


class Ranks:
    """The ranks of a run while their script runs."""

    def __init__(
        self,
        procs: ProcMesh,
        answers: Sequence[Future[Any]],
        arrivals: PortReceiver[Arrival],
        begin_again: Callable[[int], tuple[list[Future[Any]], list[Future[Any]]]],
    ) -> None:
        """Have no front end cancel the script at an interrupt, which `end` hands on.

        Args:
            answers: those of all ranks.
            arrivals: of the scripts that come to an `ElasticTraining`.
            begin_again: calls the script on a rank that has been restarted. Returns the answers of
                calls that come before it, and those of the script.
        """
        self._procs = procs
        self._arrivals = arrivals
        self._begin_again = begin_again
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._owing: list[Future[Any]] = []
        self._calls: dict[int, PendingCall] = {}
        self._before: list[Future[Any]] = []  # those of `_owing` that are no answers of a script
        self._has_ended_well = False  # whether the script of a rank has
        self.training = ScriptDriver(procs, lambda: self._events.put(None))
        self._arrival = self._next_arrival()
        self._add(answers)

    def close(self) -> None:
        """The run has ended."""
        for number in self._calls:
            runtime().calls.handed_on.discard(number)

    def wait(self) -> list[Failure]:
        """Wait until all ranks have ended, or have had time to fail after the first that failed.

        While ranks train in an `ElasticTraining`, one that dies does not fail the run.

        Returns the failures in the order in which they came.

        Raises:
            RecoveryError: a rank has ended its script, and others wait for it to train.
            KeyboardInterrupt: the one that `interrupt` was given.
        """
        errors: list[Failure] = []
        while self.training.is_active or (self._owing and not errors):
            event = self._next_event()
            if isinstance(event, KeyboardInterrupt):
                raise event
            if event is self._arrival:
                self._arrival = self._next_arrival()
                self.training.on_arrival(event.get())
            elif event is not None:
                errors += self._on_answer(event)
            if self._has_ended_well and (self.training.is_waiting or self.training.is_active):
                raise RecoveryError(
                    "a rank has ended its script, and the others wait for it in "
                    "ElasticTraining.run(); call it on all ranks, or on none"
                )
        deadline = monotonic() + FAIL_TOO_S
        while self._owing:
            try:
                self._wait_for_next(deadline)
            except TimeoutError:
                break
            except (ActorError, SupervisionError) as error:
                errors.append(error)
        return errors

    def interrupt(self, error: KeyboardInterrupt) -> None:
        """Have `wait` raise that. Called on another thread."""
        self._events.put(error)

    def end(self, number: int, grace_s: float) -> None:
        """Send a signal to the ranks that still run, and wait until they have ended.

        They are left as they are if they have not ended within that time. Their failures are
        ignored: they come of the signal.
        """
        self.training.close(f"{signal_name(number)} ends the run")
        if not self._owing:
            return
        ranks = sorted({
            call.region.ranks()[position]
            for call in self._calls.values() for position in call.owing()
        })  # fmt: skip
        deadline = monotonic() + grace_s
        with suppress(TimeoutError, AgentGoneError):
            uid = int(self._procs.uid, 16)
            runtime().agent.signal(uid, ranks, number, group=True).get(grace_s)
        if not self._ended_until(min(monotonic() + NOTE_S, deadline)) and grace_s > NOTE_S:
            left = len(self._owing)
            sys.stderr.write(
                f"monarch torchrun: {left} of {len(self._procs)} ranks run on after "
                f"{signal_name(number)}; they are killed in {grace_s - NOTE_S:.0f} s, or at the "
                "next interrupt\n"
            )
            self._ended_until(deadline)

    # --- events -----------------------------------------------------------------------------------

    def _add(self, answers: Sequence[Future[Any]]) -> None:
        for answer in answers:
            pending = answer.pending
            assert isinstance(pending, PendingCall)
            runtime().calls.handed_on.add(pending.number)
            self._calls[pending.number] = pending
            self._owing.append(answer)
            answer.on_done(partial(self._events.put, answer))

    def _next_arrival(self) -> Future[Arrival]:
        arrival = self._arrivals.recv()
        arrival.on_done(partial(self._events.put, arrival))
        return arrival

    def _next_event(self) -> Any:
        while True:
            try:
                return self._events.get(timeout=POLL_S)
            except queue.Empty:
                if self._owing:
                    with suppress(TimeoutError, ActorError, SupervisionError):
                        self._owing[0].get(0)  # raises if the session has ended

    def _on_answer(self, answer: Future[Any]) -> list[Failure]:
        """A rank has ended its script; returns the failure of the run that this is, if any."""
        is_before = answer in self._before
        self._forget(answer)
        try:
            answer.get()
        except RestartedError as error:
            if is_before:
                return []  # so does the call of the script, which follows
            if not self.training.is_active:
                return [error]
            assert answer.pending is not None
            called = answer.pending.region.ranks()
            at = error.failures[0].rank if len(called) > 1 else 0
            before, answers = self._begin_again(called[at])
            self._before += before
            self._add([*before, *answers])
        except (ActorError, SupervisionError) as error:
            if not _has_ended_well(error):
                if not isinstance(error, SupervisionError):
                    # The driver does not know of a script that ends before it comes to train.
                    self.training.close(str(error))
                return [error]
            self._has_ended_well = True
        else:
            self._has_ended_well = self._has_ended_well or not is_before
        return []

    def _forget(self, answer: Future[Any]) -> None:
        self._owing.remove(answer)
        if answer in self._before:
            self._before.remove(answer)

    # --- the end ----------------------------------------------------------------------------------

    def _ended_until(self, deadline: float) -> bool:
        """Wait until all ranks have ended; False if the deadline came first."""
        while self._owing:
            try:
                self._wait_for_next(deadline)
            except TimeoutError:
                return False
            except (ActorError, SupervisionError):
                pass  # a consequence of the signal
        return True

    def _wait_for_next(self, deadline: float) -> None:
        """Wait for the next answer. Raises its error, or TimeoutError after the deadline."""
        answer = next((one for one in self._owing if one.done), self._owing[0])
        try:
            answer.get(max(0.0, deadline - monotonic()))
        except TimeoutError:
            raise
        except (ActorError, SupervisionError) as error:
            self._forget(answer)
            if not _has_ended_well(error):
                raise
        else:
            self._forget(answer)


def _has_ended_well(error: Failure) -> bool:
    """Whether it tells of a process that has ended by itself with status 0, as by `os._exit(0)`."""
    return all(one.death is not None and one.death.exit_code == 0 for one in error.failures)
