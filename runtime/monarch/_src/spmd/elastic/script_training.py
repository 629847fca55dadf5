"""ElasticTraining: a training in a script, which goes on when a rank of `monarch torchrun` dies.

Runs in: a rank of torchrun, or any program, on the thread that calls `run`.
"""

from __future__ import annotations

import atexit
import io
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

import msgspec

from monarch._src.config import seconds
from monarch._src.errors import CollectiveError, RecoveryError
from monarch._src.mesh.restart_policy import Restart, restart_policy
from monarch._src.spmd.elastic.actor import ElasticActor, World
from monarch._src.spmd.elastic.script_requests import Arrival, script_requests
from monarch._src.spmd.elastic.state.plan import Member, Report, first_plan, plan
from monarch._src.spmd.group_plan import CPU, GPU, backend_names
from monarch._src.spmd.process_group import timeout_seconds
from monarch._src.spmd.rank_watch import is_of_bystander
from monarch._src.spmd.torch_modules import torch, torch_distributed

P = ParamSpec("P")
R = TypeVar("R")


class Stateful(Protocol):
    """An object with a state, as modules and optimizers of torch are."""

    def state_dict(self) -> Any:
        """The state: nested dicts, lists and tuples with tensors and other values."""
        ...

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take the state."""
        ...


class ElasticTraining:
    """A training in a script for torchrun, which survives deaths under `monarch torchrun`.

        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters())
        training = ElasticTraining({"model": model, "optimizer": optimizer})

        def train(until: int) -> None:
            ddp = DistributedDataParallel(model)
            while training.step < until:
                ...
                optimizer.step()
                training.step += 1

        training.run(train, 60)

    Under `monarch torchrun`, a rank that dies in `run` is started again in its place. Its process
    runs the script up to `run`, and takes the state from a rank that has it; then `run` calls the
    function again on all ranks. The processes of the other ranks go on. Under torchrun, in a
    program of its own, and on the ranks of `SPMDActor`, `run` makes the group and calls the
    function once, without recovery.
    """

    def __init__(
        self,
        state: Mapping[str, Stateful],
        *,
        load_checkpoint: Callable[[], bool] | None = None,
        backend: str | None = None,
        timeout: float | timedelta | None = None,
        restart: Restart | Literal["on-failure"] = "on-failure",
        rejoin_within: float | str = "60s",
        step_within: float | str | None = None,
        at_most: int = 5,
    ) -> None:
        """Nothing happens before `run`.

        Args:
            state: all of the state of a rank, by name: objects with `state_dict()` and
                `load_state_dict(state)`, as torch.distributed.checkpoint takes them. A model is
                given bare, without DDP. `step` is part of the state.
            load_checkpoint: a function that loads the state and sets `step` from storage, and
                returns whether there was a checkpoint. All ranks call it if no rank has the state,
                as at the first start.
            backend, timeout: of the process group, as for `ProcMesh.init_process_group`.
            restart: how often a rank may die, as for `HostMesh.spawn_procs`; its
                `while_restarting` has no effect.
            rejoin_within: seconds, or text such as `"1m"`; a rank whose script has not come to
                `run` by then is given up, and so is one that has not sent its state by then.
            step_within: seconds, or text; a rank that makes no step for so long, and waits for no
                other rank, counts as dead, and is killed. A step is made when `step` is set. None:
                a rank may take any time.
            at_most: the maximal number of recoveries in a row that bring training no step forward.

        Raises:
            TypeError, ValueError: an argument that does not fit.
        """
        for name, part in state.items():
            missing = [
                each for each in ("state_dict", "load_state_dict")
                if not callable(getattr(part, each, None))
            ]  # fmt: skip
            if missing:
                raise TypeError(
                    f"state[{name!r}] is a {type(part).__name__}, which has no "
                    f"{' and no '.join(missing)}(); give an object that has both"
                )
        if backend is not None:
            backend_names(backend)
        if isinstance(at_most, bool) or not isinstance(at_most, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"at_most={at_most!r}: give a whole number")
        if at_most < 1:
            raise ValueError(f"at_most={at_most}: give 1 or more")
        limit_s = None if step_within is None else seconds("step_within", step_within)
        if limit_s == 0:
            raise ValueError(f"step_within={step_within!r}: give a time above 0, or None")
        self._trainer = ScriptTrainer(state, load_checkpoint)
        self._options = Arrival(
            0, backend, timeout_seconds(timeout), seconds("rejoin_within", rejoin_within),
            limit_s, at_most, load_checkpoint is not None,
            restart_policy(restart) or Restart(),
        )  # fmt: skip
        self._has_run = False

    @property
    def step(self) -> int:
        """The number of steps that are done. Set it when all of the state is that of the next step.

        Raises:
            CollectiveError: the function sets it after the end of the group. The step is done then.
        """
        return self._trainer.step

    @step.setter
    def step(self, value: int) -> None:
        self._trainer.step = value

    @property
    def world(self) -> World:
        """The group that this rank is in.

        Raises:
            RuntimeError: no group has been formed yet, as before `run`.
        """
        world = getattr(self._trainer, "world", None)
        if world is None:
            raise RuntimeError("there is no group before ElasticTraining.run() forms it")
        return world

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function on each rank, in a process group that `run` makes.

        After a death, all ranks get the same state and a new group. Then `run` calls the function
        again on all of them, with the same arguments, so the function has to go on from `step`.
        Objects that hold the group, such as DDP models, are made in the function. At the first
        start all ranks get the state of rank 0, or of a checkpoint.

        Returns:
            The value of the function; after a recovery, that of the last call.

        Raises:
            Exception: that of the function.
            CollectiveError: another rank's script has failed.
            RecoveryError: training cannot go on.
            RuntimeError: the script has made a process group, or calls `run` a second time.
            ModuleNotFoundError: torch is not installed.
        """
        __tracebackhide__ = True
        if self._has_run:
            raise RuntimeError("run() has been called already; train all of it in one function")
        dist = torch_distributed()
        if dist.is_initialized() and not _is_of_driver():
            raise RuntimeError(
                "the script has made a process group, and ElasticTraining.run() makes one, after "
                "each death too; leave out init_process_group()"
            )
        self._has_run = True
        trainer = self._trainer
        trainer.function = partial(function, *args, **kwargs)
        if script_requests.is_open:
            self._run_with_driver()
        else:
            self._join(dist)
            trainer.agree(dist)
            trainer.train()
        return trainer.value

    def __repr__(self) -> str:
        return f"<ElasticTraining of {', '.join(self._trainer.parts)}, at step {self.step}>"

    def _run_with_driver(self) -> None:
        __tracebackhide__ = True
        trainer = self._trainer
        script_requests.enter(msgspec.structs.replace(self._options, rank=script_requests.rank))
        error = script_requests.serve(trainer).error
        own = trainer.error
        if error is None:
            if trainer.has_ended:
                return
            # The answer of the process before was in when that died.
            raise RecoveryError("this process took the place of one that died after the training")
        if isinstance(error, CollectiveError) and own is not None and not is_of_bystander(own):
            raise own
        raise error from own

    def _join(self, dist: Any) -> None:
        """Make the default process group, with the environment of torchrun if there is one."""
        options = self._options
        backend = options.backend or (GPU if torch().cuda.is_available() else CPU)
        timeout = timedelta(seconds=options.timeout_s)
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            dist.init_process_group(backend, timeout=timeout)
        else:
            dist.init_process_group(
                backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout
            )
        atexit.register(_leave_group)


class ScriptTrainer(ElasticActor):
    """The state of a script, as `ElasticDriver` knows that of an `ElasticActor`."""

    __monarch_label__ = "the training"

    def __init__(
        self, parts: Mapping[str, Stateful], load_checkpoint: Callable[[], bool] | None
    ) -> None:
        self.parts = dict(parts)
        self.function: Callable[[], Any] | None = None
        self.value: Any = None
        self.error: Exception | None = None  # of the last call of the function
        self.has_ended = False  # whether the last call has returned
        self._load = load_checkpoint

    def state_dict(self) -> dict[str, Any]:
        """The state of each part."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of each part."""
        for name, part in self.parts.items():
            part.load_state_dict(state[name])

    def load_checkpoint(self) -> bool:
        """Call the function of the script."""
        return False if self._load is None else self._load()

    def train(self) -> None:
        """Call the function, and keep its value, or its error."""
        __tracebackhide__ = True
        assert self.function is not None
        self.error, self.has_ended = None, False
        try:
            self.value = self.function()
        except Exception as error:
            self.error = error
            raise
        self.has_ended = True

    def agree(self, dist: Any) -> None:
        """Give all ranks of the group the same state, without a driver."""
        rank, size = dist.get_rank(), dist.get_world_size()
        self.world = World(1, rank, size, 0, 1)
        report = self.elastic_load_checkpoint()
        if size == 1:
            return
        reports: list[Report | None] = [None] * size
        dist.all_gather_object(reports, report)
        world = [Member(0, each) for each in range(size)]
        known = {one: each for one, each in zip(world, reports, strict=True) if each is not None}
        found = plan(known, world, sharded=False) or first_plan(known, world, sharded=False)
        if found is None or not found.transfers:
            return
        source = found.transfers[0].source.rank
        sent: list[bytes | None] = [_saved(self.state_dict()) if rank == source else None]
        dist.broadcast_object_list(sent, src=source)
        if any(transfer.target.rank == rank for transfer in found.transfers):
            self.load_state_dict(
                torch().load(io.BytesIO(sent[0] or b""), "cpu", weights_only=False)
            )
            self.step = found.step


def _saved(state: Any) -> bytes:
    """A state as bytes; its tensors are on the CPU when it is loaded, on whichever device here."""
    buffer = io.BytesIO()
    torch().save(state, buffer)
    return buffer.getvalue()


def _is_of_driver() -> bool:
    """Whether the driver of this training has made the group.

    A process that took the place of another one joins a group before its script has come to train,
    if the other one died between its report and the join.
    """
    if not script_requests.is_open:
        return False
    from monarch._src.spmd.member import is_of_member  # loads asyncio, which no program needs

    return is_of_member()


def _leave_group() -> None:
    dist = torch_distributed()
    if dist.is_initialized():
        dist.destroy_process_group()
