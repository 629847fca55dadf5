"""Restart: the policy by which processes that die are started again.

Runs in: the process that spawns. The host agent carries it out (`host.state.restarts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from monarch._src.config import seconds
from monarch._src.wire.messages import RestartRule


@dataclass(frozen=True)
class Restart:
    """How a process that has died is restarted; durations are seconds, or text such as `"1m 30s"`.

    Each rank may be restarted `at_most` times in any period of length `within`; its next death is
    final, and is reported to the owner of the mesh as any other. The first restart comes at once,
    the second after `back_off`, each further one after `factor` times the last wait, up to
    `longest`. Each wait is shortened by a random part of up to `jitter`, so that ranks that died
    together don't return together; the same `seed` gives the same waits.

    `while_restarting` says how calls to a rank that is down behave. `"wait"`, for callers whose
    only option would be to call again: the new process answers the call. `"raise"`, for callers
    that have another rank to call: the call raises RestartedError. Either way, calls that were
    running when the process died raise RestartedError: whether they had an effect is unknown, and
    the state they were meant for is lost.

    Raises:
        ValueError: a number out of range. TypeError: not a number, or not a duration.
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
            raise ValueError(f"at_most={at_most}: to have no restarts, leave out `restart`")
        for name, least in (("factor", 1.0), ("jitter", 0.0)):
            number: Any = getattr(self, name)
            if not isinstance(number, (int, float)) or isinstance(number, bool):
                raise TypeError(f"{name}={number!r}: give a number")
            if not least <= number < float("inf"):
                raise ValueError(f"{name}={number}: give a number of {least:g} or more")
        if self.jitter > 1:
            raise ValueError(f"jitter={self.jitter}: give the part of a wait to vary, from 0 to 1")
        if self.while_restarting not in ("wait", "raise"):
            raise ValueError(f"while_restarting={self.while_restarting!r}: give 'wait' or 'raise'")
        self.rule()

    def rule(self) -> RestartRule:
        """The same policy in seconds, as the host agent gets it."""
        return RestartRule(
            self.at_most, seconds("within", self.within), seconds("back_off", self.back_off),
            float(self.factor), seconds("longest", self.longest), float(self.jitter), self.seed,
        )  # fmt: skip


class LaterRestart(Restart):
    """Restarts no rank before `AgentClient.set_restarts` gives the mesh another rule."""

    def rule(self) -> RestartRule:
        return msgspec.structs.replace(super().rule(), most=0)


def restart_policy(asked: Any) -> Restart | None:
    """The policy for the argument `restart` of `spawn_procs`.

    Raises:
        ValueError: text other than "on-failure". TypeError: neither that nor a Restart.
    """
    if asked is None or isinstance(asked, Restart):
        return asked
    if asked == "on-failure":
        return Restart()
    if isinstance(asked, str):
        raise ValueError(f"restart={asked!r}: give 'on-failure', or a Restart for more")
    raise TypeError(f"restart={asked!r}: give 'on-failure', or a Restart of monarch.supervision")
