"""`logging_option` of a ProcMesh.

Runs in: a client, in the event loop of the caller.
"""

from __future__ import annotations

import logging
from abc import abstractmethod

from monarch._src.actor.future import Future
from monarch._src.actor.runtime import Runtime
from monarch._src.mesh.procs import Procs
from monarch._src.shape import Region


class ChoosesOutput:
    """Mixed into ProcMesh: which output of its ranks is shown."""

    _runtime: Runtime
    _procs: Procs
    _region: Region

    @property
    @abstractmethod
    def name(self) -> str:
        """The name given at spawn."""

    @property
    @abstractmethod
    def initialized(self) -> Future[bool]:
        """Done, with True, when every process is up."""

    async def logging_option(
        self,
        stream_to_client: bool = False,
        aggregate_window_sec: float | None = None,
        level: int = logging.INFO,
    ) -> None:
        """Choose which lines of these processes reach this program's streams, or notebook cells.

        By default every line does, at once. Returns when all processes use the new log level.

        Args:
            stream_to_client: whether lines are shown at all; `%monarch logs` has them in any case.
            aggregate_window_sec: seconds for which lines are gathered; equal lines of several ranks
                are then shown once. None: lines are shown as they come.
            level: the lowest level that `logging` emits in these processes.

        Raises:
            TypeError, ValueError: an argument that does not fit, or two that contradict each other;
                this process has not spawned the mesh, or is not a client.
            SupervisionError: a process of the mesh could not start.
        """
        # Imported here: it needs an event loop, which most programs do without.
        from monarch._src.mesh.log_rules import checked_rule, set_log_level, sieve_of

        rule = checked_rule(stream_to_client, aggregate_window_sec, level)
        run, ref = self._runtime, self._procs.ref
        if not self._procs.owned or run.proc_ref is not None:
            raise ValueError(
                f"the output of {self.name!r} goes to the client that spawned it; call "
                "logging_option there"
            )
        await self.initialized
        await run.agent.flush_output()  # lines written before this call follow the rule before it
        sieve_of(run).set(ref.uid, list(self._region.ranks()), rule)
        await set_log_level(run, ref, self._region, level)
