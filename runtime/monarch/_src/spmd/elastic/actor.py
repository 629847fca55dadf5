"""ElasticActor: the base class of actors whose training goes on when a rank dies.

Runs in: a rank, on the thread of the actor. The driver (`ElasticMesh`) calls the methods whose
names begin with `elastic_`, in between the endpoints of the user. `StepClock` reports the progress
of the endpoint that the rank trains in, while it runs, on a loop of its own.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from monarch._src.actor.current import context
from monarch._src.actor.endpoint import Actor, concurrent_endpoint
from monarch._src.errors import CollectiveError
from monarch._src.rdma.weights.publish import StateDictSource
from monarch._src.spmd.elastic.state.plan import Report
from monarch._src.spmd.elastic.training_state import StateOffer, offer_state, take_state
from monarch._src.spmd.rank_watch import why_ended

_steps = 0


def _note_step() -> None:
    """The actor of this process has begun its endpoint, or has made a step."""
    global _steps
    _steps += 1


class StepClock(Actor):
    """Reports the progress of a rank."""

    __monarch_label__ = "the step clock"
    __monarch_watches__ = True
    __monarch_main_thread__ = "never"

    @concurrent_endpoint
    async def read(self) -> tuple[int, int]:
        """This rank, and how often it has made progress since its process began."""
        return context().actor_instance.rank.rank, _steps


class World(msgspec.Struct, frozen=True):
    """The group that a rank is in.

    `rank` of `size` ranks, numbered over all replicas; `replica` of `replicas` that are present.
    Each group that is formed has the next `generation`.
    """

    generation: int
    rank: int
    size: int
    replica: int
    replicas: int


class NotReadyError(RuntimeError):
    """This process took the place of another process after the group was formed."""


class ElasticActor(Actor):
    """Base of actors that train in an `ElasticMesh`. Their endpoints are plain `def`.

    A subclass counts its steps in `step`, and defines `state_dict()` and `load_state_dict(state)`,
    as modules and optimizers of torch do. The state is nested dicts, lists and tuples with tensors
    and other values. `step` is sent with it. `run` calls an endpoint again after a recovery, so the
    endpoint goes on from `step`:

        class Trainer(ElasticActor):
            def __init__(self):
                self.model = nn.Linear(4, 1)
                self.optimizer = torch.optim.Adam(self.model.parameters())

            def state_dict(self):
                return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

            def load_state_dict(self, state):
                self.model.load_state_dict(state["model"])
                self.optimizer.load_state_dict(state["optimizer"])

            def on_group_formed(self):
                self.ddp = DistributedDataParallel(self.model)

            @endpoint
            def train(self, until: int):
                while self.step < until:
                    ...
                    self.optimizer.step()
                    self.step += 1

    A subclass may define `load_checkpoint() -> bool`, which loads the state and the step from
    storage, and returns False without a checkpoint. All ranks call it if no rank has the state.
    """

    world: World
    _step: int = 0
    _is_running: bool = False
    _looked: int = 0
    _has_trained: bool = False
    _source: StateDictSource | None = None

    @property
    def step(self) -> int:
        """The number of steps that are done. Set it when all of the state is that of the next step.

        Raises:
            CollectiveError: an endpoint sets it after the end of the group. The step is done then.
        """
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        self._step = value
        _note_step()
        # A group of one rank has no connection whose end could be noticed.
        why = why_ended() if self._is_running else None
        if why is not None:
            raise CollectiveError(why)

    def on_group_formed(self) -> None:
        """Called on each rank, its state loaded, when torch's default group is new; see `world`.

        Make objects that hold the old group, such as DDP models and DeviceMeshes, anew here.
        """

    # --- for the driver ---------------------------------------------------------------------------

    def elastic_look(self, generation: int) -> Report:
        """Report the state of this rank, and take part in this generation."""
        self._looked = generation
        return Report(self.step, self._has_trained)

    def elastic_report(self) -> Report:
        """Report the state of this rank."""
        return Report(self.step, self._has_trained)

    def elastic_load_checkpoint(self) -> Report:
        """Load the checkpoint, if there is one."""
        found = cast("Any", self).load_checkpoint()
        if not isinstance(found, bool):
            raise TypeError(
                f"{type(self).__name__}.load_checkpoint() returns whether there was a checkpoint, "
                f"not {found!r}"
            )
        self._has_trained = found
        return Report(self.step, found)

    def elastic_offer(self, generation: int) -> StateOffer:
        """Publish the state of this rank. Raises NotReadyError as `elastic_run` does.

        A rank that reported its state may have died since. The process in its place has the state
        of its constructor, which no rank may take.
        """
        self._check_ready(generation)
        offer, self._source = offer_state(self.step, cast("Any", self).state_dict())
        return offer

    def _check_ready(self, generation: int) -> None:
        if self._looked != generation:
            raise NotReadyError(f"generation {generation} was formed without this process")

    def elastic_take(self, offer: StateOffer, timeout_s: float) -> None:
        """Take the state that another rank offers."""
        state = take_state(offer, timeout_s)
        cast("Any", self).load_state_dict(state)
        self.step = offer.step
        self._has_trained = True

    def elastic_run(
        self, world: World, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, Any]:
        """Run an endpoint; returns this rank, and the result of the endpoint.

        Raises:
            NotReadyError: the driver has not called `elastic_look` in this process and generation.
        """
        __tracebackhide__ = True
        self._check_ready(world.generation)
        self._source = None  # all have taken the state
        self._has_trained = True
        _note_step()
        rank = context().actor_instance.rank.rank
        world = msgspec.structs.replace(world, rank=world.rank + rank)
        if getattr(self, "world", None) != world:
            self.world = world
            self.on_group_formed()
        self._is_running = True
        try:
            return rank, getattr(self, name)(*args, **kwargs)
        finally:
            self._is_running = False
