"""Restart: the policy by which processes that die are started again.

Runs in: whoever spawns. The host agent carries it out (`host.state.restarts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from monarch._src.config import seconds
from monarch._src.wire.messages import RestartRule


@dataclass(frozen=True)
class Restart:
    """How a process that has died is started again; durations are seconds, or text as `"1m 30s"`.

    Each rank by itself may be restarted `at_most` times `within` any such time; its next death is
    final, and goes to the owner of the mesh as any other does. The first restart comes at once, the
    next in that time after `back_off`, each further one after `factor` times longer, `longest` at
    most. Of each wait a part, drawn by chance, of up to `jitter` is left out, so that ranks that
    died together don't come back together; the same `seed` draws the same.

    `while_restarting`: what a call does to a rank that is down. `"wait"`, which is what a caller
    wants who has nothing better to do than to call again: it is answered by the new process.
    `"raise"`: it raises RestartedError, for a caller who has another rank to go to. Either way the
    calls that were under way when it died raise RestartedError: whether they were done is not
    known, and the state they were for is lost.

    Raises:
        ValueError: a number that makes no sense. TypeError: no number, no duration.
    """

    at_most: int = 5
    within: float | str = "60s"
    back_off: float | str = "100ms"
    factor: float = 2.0
    longest: float | str = "30s"
    jitter: float = 0.2
    seed: int = 0
    while_restarting: Literal["wait", "raise"] = "wait"

    def __post_init__(self) -> None:
        at_most: Any = self.at_most
        if not isinstance(at_most, int) or isinstance(at_most, bool):
            raise TypeError(f"at_most={at_most!r}: give a whole number of restarts")
        if at_most < 1:
            raise ValueError(f"at_most={at_most}: for no restart leave out `restart`")
        for name, least in (("factor", 1.0), ("jitter", 0.0)):
            number: Any = getattr(self, name)
            if not isinstance(number, (int, float)) or isinstance(number, bool):
                raise TypeError(f"{name}={number!r}: give a number")
            if not least <= number < float("inf"):
                raise ValueError(f"{name}={number}: give a number of {least:g} or more")
        if self.jitter > 1:
            raise ValueError(f"jitter={self.jitter}: the part of a wait to vary, from 0 to 1")
        if self.while_restarting not in ("wait", "raise"):
            raise ValueError(f"while_restarting={self.while_restarting!r}: give 'wait' or 'raise'")
        self.rule()

    def rule(self) -> RestartRule:
        """The same, in seconds, as the host agent gets it."""
        return RestartRule(
            self.at_most, seconds("within", self.within), seconds("back_off", self.back_off),
            float(self.factor), seconds("longest", self.longest), float(self.jitter), self.seed,
        )  # fmt: skip


def restart_policy(asked: Any) -> Restart | None:
    """What `spawn_procs(restart=...)` was given.

    Raises:
        ValueError: another word than "on-failure". TypeError: neither that nor a Restart.
    """
    if asked is None or isinstance(asked, Restart):
        return asked
    if asked == "on-failure":
        return Restart()
    if isinstance(asked, str):
        raise ValueError(f"restart={asked!r}: give 'on-failure', or a Restart for more")
    raise TypeError(f"restart={asked!r}: give 'on-failure', or a Restart of monarch.supervision")
