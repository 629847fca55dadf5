"""The actor by which the driver of a training reaches the script of a rank.

Runs in: a rank of `torchrun`, on a loop of its own. The work is done on the thread of the script.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from monarch._src.actor.endpoint import Actor, concurrent_endpoint
from monarch._src.spmd.elastic.actor import World
from monarch._src.spmd.elastic.script_requests import Outcome, script_requests
from monarch._src.spmd.elastic.state.plan import Report
from monarch._src.spmd.elastic.training_state import StateOffer


class TrainingRank(Actor):
    """Has the script do what `ElasticDriver` asks an `ElasticActor` for."""

    __monarch_label__ = "the training"
    __monarch_main_thread__ = "never"

    @concurrent_endpoint
    async def elastic_look(self, generation: int) -> Report:
        """See `ElasticActor`."""
        return await _asked(lambda trainer: trainer.elastic_look(generation))

    @concurrent_endpoint
    async def elastic_report(self) -> Report:
        """See `ElasticActor`."""
        return await _asked(lambda trainer: trainer.elastic_report())

    @concurrent_endpoint
    async def elastic_load_checkpoint(self) -> Report:
        """See `ElasticActor`."""
        return await _asked(lambda trainer: trainer.elastic_load_checkpoint())

    @concurrent_endpoint
    async def elastic_offer(self, generation: int) -> StateOffer:
        """See `ElasticActor`."""
        return await _asked(lambda trainer: trainer.elastic_offer(generation))

    @concurrent_endpoint
    async def elastic_take(self, offer: StateOffer, timeout_s: float) -> None:
        """See `ElasticActor`."""
        await _asked(lambda trainer: trainer.elastic_take(offer, timeout_s))

    @concurrent_endpoint
    async def elastic_run(
        self, world: World, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, Any]:
        """See `ElasticActor`."""
        __tracebackhide__ = True
        return await _asked(lambda trainer: trainer.elastic_run(world, name, args, kwargs))

    @concurrent_endpoint
    async def leave(self, error: Exception | None) -> None:
        """The training has ended: the script goes on, or gets this error."""
        script_requests.leave(Outcome(error))


async def _asked(function: Callable[[Any], Any]) -> Any:
    """The value of a function that the script's thread calls; its error is raised here."""
    __tracebackhide__ = True
    loop = asyncio.get_running_loop()
    settled: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if settled.done():
            return
        if error is None:
            settled.set_result(value)
        elif isinstance(error, StopIteration):  # which a future refuses
            settled.set_exception(RuntimeError(f"the script raised {error!r}"))
        else:
            settled.set_exception(error)

    def done(value: Any, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            pass  # the actor has ended, and its loop is closed

    script_requests.ask(function, done)
    return await settled
