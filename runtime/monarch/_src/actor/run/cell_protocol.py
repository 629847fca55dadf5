"""The protocol of an actor's cell for the parts of that cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from monarch._src.actor.context import ActorInstance, Context
    from monarch._src.actor.run.endpoint_table import EndpointTable
    from monarch._src.actor.run.mailbox import Mailbox
    from monarch._src.actor.runtime import Runtime
    from monarch._src.actor.supervise.ownership import Supervisor
    from monarch._src.failures.report import FailureKind, RankFailure
    from monarch._src.wire.messages import Call, SpawnActor


class Cell(Protocol):
    """One actor of this process; see `monarch._src.actor.run.cell.ActorCell`."""

    runtime: Runtime
    spec: SpawnActor
    mailbox: Mailbox
    dead: RankFailure | None
    instance: ActorInstance
    instance_object: Any
    endpoints: EndpointTable | None
    supervisor: Supervisor
    idle_context: Context
    pause_at_safe_point: Callable[[], None] | None
    raise_in: Callable[[Call], bool] | None

    @property
    def rank(self) -> int:
        """The rank of its proc."""
        ...

    @property
    def point(self) -> dict[str, int]:
        """The coordinates of that rank."""
        ...

    def is_fatal(self, failure: RankFailure) -> bool:
        """Whether this process ends with that failure."""
        ...

    def describe(
        self, error: BaseException, kind: FailureKind, endpoint: str | None
    ) -> RankFailure:
        """The failure that stands for an error of this actor's code."""
        ...

    def failure_of_kind(self, kind: FailureKind, message: str) -> RankFailure:
        """A failure of this actor that is no error of its code."""
        ...

    def fail(self, failure: RankFailure, cause: BaseException, *, cleans: bool = True) -> None:
        """The actor has failed. Any thread."""
        ...
