"""Every public exception, and the facts they carry.

    Exception
    ├── ActorError            an endpoint raised; the actor lives
    ├── DeadlockError         (RuntimeError) actors wait for each other in a cycle
    ├── MeshStoppedError      (RuntimeError) a mesh was used after `stop`
    └── SupervisionError      (RuntimeError) what you called has died, or never lived

`MeshFailure` is no exception: it is what a supervisor is told. All three carry `RankFailure`s,
data first, and word themselves from that data when they are shown. Because ranks answer one after
another, an error that one rank's failure completed learns of the others while it is already on its
way; `failures` grows until the last rank has answered, and the text is made when it is read.

You do *not* get these for mistakes that are found before anything is sent: a call that does not fit
the signature is a `TypeError`, a wrong dim too, a `call_one` on many ranks a `ValueError`.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

FailureKind = Literal[
    "endpoint", "constructor", "actor died", "proc died", "host lost", "never started", "stopped"
]


_FIRST_FRAMES, _LAST_FRAMES = 10, 20


@dataclass(frozen=True)
class Frame:
    """One line of a remote traceback. `user` is False for frames of the runtime itself."""

    filename: str
    lineno: int
    name: str
    line: str
    user: bool = True


@dataclass(frozen=True)
class Death:
    """Why a process ended, as its host agent saw it from outside.

    `endpoint` is what it ran when it ended (None: idle), `ran_s` for how many seconds the process
    lived, `stderr_tail` its last lines on stderr.
    """

    exit_code: int | None
    signal_name: str | None
    stderr_tail: tuple[str, ...]
    endpoint: str | None
    ran_s: float
    reason: str


@dataclass(frozen=True)
class RankFailure:
    """What happened to one rank. `kind` says which story the other fields tell."""

    mesh_name: str
    rank: int
    point: dict[str, int]
    actor_class: str
    endpoint: str | None
    host: str
    pid: int | None
    kind: FailureKind
    exception_type: str
    message: str
    frames: tuple[Frame, ...] = ()
    traceback: str = ""
    death: Death | None = None

    @property
    def where(self) -> str:
        """`workers[gpus=3]`, the way a user would write the slice."""
        return self.mesh_name + at_text(self.point)

    @property
    def what(self) -> str:
        """One line: who, where and what, without the frames."""
        method = f".{self.endpoint}" if self.endpoint else ""
        actor = f"{self.actor_class}{method}"
        said = f"{self.exception_type}: {self.message}" if self.message else self.exception_type
        match self.kind:
            case "endpoint":
                return f"{actor} on {self.where} raised {said}"
            case "constructor":
                if not self.actor_class:  # what its proc has to run before any actor
                    return f"{self.endpoint} on {self.where} raised {said}"
                return f"{self.actor_class}.__init__ on {self.where} raised {said}"
            case "actor died":
                return f"{actor} on {self.where} died of {said}"
            case "proc died":
                running = self.death.endpoint if self.death else None
                doing = f" while it ran {running}" if running else ""
                return f"{self.where} (pid {self.pid}) died{doing}: {self.message}"
            case "host lost":
                return f"the host agent of {self.where} is gone: {self.message}"
            case "never started":
                return f"{self.where} never started: {self.message}"
            case "stopped":
                return f"{self.where} was stopped: {self.message}"

    @property
    def story(self) -> tuple[object, ...]:
        """What must be equal for two ranks to have failed in the same way."""
        return (self.kind, self.actor_class, self.endpoint, self.exception_type, self.message,
                self.frames)  # fmt: skip

    def text(self) -> str:
        """`what`, then the user's frames, or the last lines of stderr of a dead process."""
        lines = [self.what, *_frames_text([frame for frame in self.frames if frame.user])]
        if self.death and self.death.stderr_tail:
            lines.append("  last lines on its stderr:")
            lines += [f"    {line}" for line in self.death.stderr_tail[-8:]]
        return "\n".join(lines)


def _frames_text(frames: Sequence[Frame]) -> list[str]:
    """As in a traceback; bounded, since an endless recursion has a thousand."""
    runs: list[tuple[Frame, int]] = []
    for frame in frames:
        if runs and runs[-1][0] == frame:
            runs[-1] = (frame, runs[-1][1] + 1)
        else:
            runs.append((frame, 1))
    left_out = len(runs) - _FIRST_FRAMES - _LAST_FRAMES
    lines: list[str] = []
    for at, (frame, count) in enumerate(runs):
        if left_out > 0 and _FIRST_FRAMES <= at < _FIRST_FRAMES + left_out:
            if at == _FIRST_FRAMES:
                lines.append(f"  ... {left_out} more frames ...")
            continue
        lines.append(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}')
        if frame.line:
            lines.append(f"    {frame.line}")
        if count > 1:
            lines.append(f"  [the same {count - 1} more times]")
    return lines


def at_text(point: dict[str, int]) -> str:
    """`[hosts=1, gpus=3]`; nothing for a mesh without dims."""
    return "[" + ", ".join(f"{dim}={at}" for dim, at in point.items()) + "]" if point else ""


def ranks_text(failures: Sequence[RankFailure]) -> str:
    """`gpus=1..3, gpus=6` for one dim; a bounded list of places for several."""
    dims = {tuple(f.point) for f in failures}  # of more than one mesh, they may differ
    if len(dims) == 1 and len(failures[0].point) == 1:
        dim = next(iter(failures[0].point))
        places = sorted(f.point[dim] for f in failures)
        runs: list[tuple[int, int]] = []
        for place in places:
            if runs and runs[-1][1] == place - 1:
                runs[-1] = (runs[-1][0], place)
            else:
                runs.append((place, place))
        return ", ".join(f"{dim}={a}" if a == b else f"{dim}={a}..{b}" for a, b in runs)
    shown = [at_text(f.point) or f.mesh_name for f in failures[:8]]
    more = f" and {len(failures) - 8} more" if len(failures) > 8 else ""
    return ", ".join(shown) + more


def fold(failures: Sequence[RankFailure]) -> list[list[RankFailure]]:
    """Group failures that tell the same story, in the order in which each story was first told."""
    groups: dict[tuple[object, ...], list[RankFailure]] = {}
    for failure in failures:
        groups.setdefault(failure.story, []).append(failure)
    return list(groups.values())


def failures_text(failures: Sequence[RankFailure]) -> str:
    """Every distinct story once, each with the ranks that share it."""
    parts: list[str] = []
    for group in fold(failures):
        text = group[0].text()
        if len(group) > 1:
            others = len(group) - 1
            text += f"\nand on {others} more rank{'s' * (others > 1)}: {ranks_text(group[1:])}"
        parts.append(text)
    return "\n".join(parts)


class _FailureReport:
    """What ActorError and SupervisionError share: failures that may still arrive, and a text."""

    _failures: Sequence[RankFailure]
    _message: str

    @property
    def failures(self) -> tuple[RankFailure, ...]:
        """One entry a failed rank, the first cause first; grows while other ranks still answer."""
        return tuple(self._failures)

    @property
    def message(self) -> str:
        """The text that `str()` shows."""
        failures = self.failures
        return failures_text(failures) if failures else self._message

    def __str__(self) -> str:
        return self.message


class ActorError(_FailureReport, Exception):
    """An endpoint raised an `Exception` and its caller waited for the answer. The actor lives.

    `exception` is the remote exception itself, or None where it could not be rebuilt here.
    """

    def __init__(
        self,
        exception: BaseException | None = None,
        message: str = "a remote actor call failed",
        failures: Sequence[RankFailure] = (),
    ) -> None:
        super().__init__(exception, message)
        self.exception = exception
        self._message = message
        self._failures = failures

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (portable(self.exception), self._message, self.failures)


class SupervisionError(_FailureReport, RuntimeError):
    """What was called has died (a process, an actor, a host), or its constructor raised."""

    def __init__(
        self,
        message: str = "a mesh that was called has failed",
        failures: Sequence[RankFailure] = (),
    ) -> None:
        super().__init__(message)
        self._message = message
        self._failures = failures

    @property
    def exception(self) -> BaseException | None:
        """Always None: nothing was raised to the caller on the other side."""
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._message, self.failures)


class DeadlockError(RuntimeError):
    """Actors wait for each other in a cycle, so none of them could ever go on.

    Raised where one of them waits; `cycle` says who waits for whom, one actor an entry.
    """

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = tuple(cycle)
        chain = ", which waits for ".join([*self.cycle[1:], *self.cycle[:1]])
        super().__init__(
            f"{' '.join(self.cycle[:1])} waits for {chain}: none can go on. Don't wait for the "
            "answer there, or make the endpoint that is called back a concurrent_endpoint"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.cycle,)


class MeshStoppedError(RuntimeError):
    """A mesh was used after it had been stopped."""


class BlockedLoopError(RuntimeError):
    """A blocking wait was asked for on a thread that must never block."""


@dataclass(frozen=True)
class MeshFailure:
    """What `__supervise__` and `unhandled_fault_hook` are told. `mesh` is the mesh that failed."""

    mesh_name: str
    failures: tuple[RankFailure, ...]
    mesh: object = field(default=None, compare=False, repr=False)

    def report(self) -> str:
        """The failures in words, equal ones folded."""
        return failures_text(self.failures)

    def __str__(self) -> str:
        return f"{self.mesh_name} has failed: {self.report()}"


def portable(exception: BaseException | None) -> BaseException | None:
    """The exception if pickle can carry it to another process and back, else None."""
    if exception is None:
        return None
    try:
        pickle.loads(pickle.dumps(exception))
    except Exception:
        return None
    return exception


def moved(failure: RankFailure, mesh_name: str, rank: int, point: dict[str, int]) -> RankFailure:
    """The same failure, told of another mesh that stands on the same process."""
    return replace(failure, mesh_name=mesh_name, rank=rank, point=point)


# Tracebacks show where a user imports these from.
for _public in (ActorError, DeadlockError, MeshStoppedError, SupervisionError):
    _public.__module__ = "monarch.actor"
