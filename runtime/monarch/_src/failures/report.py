"""Reports of failures: structured records, and the text that is made of them. No I/O.

A `RankFailure` records the failure of one rank as plain data that travels between processes.
Errors (`monarch._src.errors`), supervisors and front ends carry it and format it when they are
shown. Ranks that failed in the same way share one description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from monarch._src.failures.endpoint_text import endpoint_text
from monarch._src.failures.traceback import (
    FIRST_FRAMES,
    LAST_FRAMES,
    Behind,
    Frame,
    behind_text,
    frames_text,
)

FailureKind = Literal[
    "endpoint", "constructor", "actor died", "nobody waited", "not handled", "undeliverable",
    "proc died", "host lost", "link lost", "never started", "stopped", "out of reach",
]  # fmt: skip


_MOST_WORDINGS = 3  # shown for one failure, beside the first
_LONGEST_WORDING = 200
_NO_DIGITS = str.maketrans("", "", "0123456789")
_LONG_S = 10.0  # the run time of a shorter endpoint explains nothing


class OutOfMemory(msgspec.Struct, frozen=True):
    """Evidence that a lack of memory ended a process or a call. Sizes in bytes; None: unknown.

    `where`: the kernel killed the process because its `cgroup`, or the whole host, was out of
    memory; or Python could not allocate; or CUDA could not. `limit` is the limit of the cgroup, or
    of the process; `held` the peak memory of the process (for Python: at the failure). `kills` is
    the increase of the kernel's count of out-of-memory kills. The kernel counts by cgroup: where
    the cgroup is `shared` with other processes, it may have killed another one of them.
    """

    where: Literal["cgroup", "host", "python", "cuda"]
    limit: int | None = None
    held: int | None = None
    cgroup: str = ""
    kills: int = 0
    shared: bool = False

    def text(self) -> str:
        """The evidence, as the end of a sentence."""
        held = "" if self.held is None else f"it held {_bytes_text(self.held)}"
        match self.where:
            case "cgroup":
                limit = "" if self.limit is None else f", which may hold {_bytes_text(self.limit)},"
                kills = f"the kernel's count of kills for memory in its cgroup {self.cgroup}{limit}"
                kills += f" rose by {self.kills}"
                held = held and f"{held} at most"
            case "host":
                kills = f"the kernel's count of kills for memory on this host rose by {self.kills}"
                held = held and f"{held} at most"
            case "python":
                limit = "" if self.limit is None else f" and may have {_bytes_text(self.limit)}"
                kills, held = "", held and held + limit
            case "cuda":
                kills = held = ""
        verdict = "out of GPU memory" if self.where == "cuda" else "out of memory"
        if self.shared or self.where == "host":
            verdict = f"probably {verdict}"
            kills += " since the last check"
        evidence = "; ".join(x for x in (kills, held) if x)
        return ": ".join(part for part in (verdict, evidence) if part)


def _bytes_text(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


CRASH = "Fatal Python error: "
LAST_LINES = 8
MOST_STACK_LINES = 16
_OWN_CODE = ("/monarch/_src/", "/monarch_jupyter/")


class Death(msgspec.Struct, frozen=True):
    """The end of a process, as its host agent observed it.

    `endpoint` is the endpoint that was running then (None: idle), and `endpoint_s` for how many
    seconds; `ran_s` is the age of the process in seconds, `stderr_tail` its last lines on stderr,
    50 at most.
    """

    exit_code: int | None
    signal_name: str | None
    stderr_tail: tuple[str, ...]
    endpoint: str | None
    ran_s: float
    reason: str
    endpoint_s: float | None = None
    core_dumped: bool = False
    memory: OutOfMemory | None = None

    def text(self) -> str:
        """One line: the reason, and the endpoint that was running."""
        doing = f" while it ran {self.endpoint}" if self.endpoint else ""
        return f"{self.reason}{doing}"

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The lines of stderr for an error: the last ones, or the user's stack at a crash.

        Python's fault handler writes the stack at a crash of C code, innermost frame first.
        """
        tail = self.stderr_tail
        crashes = [at for at, line in enumerate(tail) if line.startswith(CRASH)]
        if not crashes:
            return tail[-LAST_LINES:]
        lines: list[str] = []
        for line in tail[crashes[-1] :]:
            is_own = any(part in line for part in _OWN_CODE)
            if is_own or line.startswith("Extension modules:"):
                break
            if line:
                lines.append(line)
        return tuple(lines[:MOST_STACK_LINES])


class RankFailure(msgspec.Struct, frozen=True):
    """The failure of one rank. `kind` says which other fields apply.

    `restarted`: how many times this rank has been restarted, this restart included (0: it is not
    being restarted). `earlier`: how the earlier incarnations ended, the oldest first, as far as
    they counted towards the restart limit that this one has reached. `behind`: the exceptions that
    caused this one, or that it contains. `died_before`: the process had died before the call that
    is told of this, so that the endpoint of its death belongs to another call.
    """

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
    memory: OutOfMemory | None = None
    restarted: int = 0
    earlier: tuple[Death, ...] = ()
    # For an owner or a sender: the failures that caused this one, the first one first.
    causes: tuple[RankFailure, ...] = ()
    behind: tuple[Behind, ...] = ()
    died_before: bool = False

    @property
    def first_cause(self) -> RankFailure:
        """The root of the chain of causes; this failure if it has no cause."""
        return self.causes[0].first_cause if self.causes else self

    @property
    def where(self) -> str:
        """`workers[gpus=3]`, the way a user would write the slice."""
        return self.mesh_name + at_text(self.point)

    @property
    def what(self) -> str:
        """One line that names the actor, its rank and the failure; the first cause first."""
        if self.causes:
            return f"{self.causes[0].what}; {self._consequence}"
        return self._description

    @property
    def _consequence(self) -> str:
        """This failure, worded as the result of its causes."""
        if self.kind == "not handled":
            owner = self.actor_class
            if not owner:
                return f"{self.message}, so {self.where} is reported as failed"
            role = "sender" if self.causes[0].kind == "undeliverable" else "owner"
            return f"so {owner} on {self.where}, its {role}, failed: {self.message}"
        return f"so {self._description}"

    @property
    def _description(self) -> str:
        actor = endpoint_text(self.actor_class, self.endpoint)
        error = f"{self.exception_type}: {self.message}" if self.message else self.exception_type
        if self.memory is not None:
            error += f" ({self.memory.text()})"
        match self.kind:
            case "endpoint":
                return f"{actor} on {self.where} raised {error}"
            case "constructor":
                if not self.actor_class:  # a bootstrap function, which runs before any actor
                    return f"{self.endpoint} on {self.where} raised {error}"
                maker = endpoint_text(self.actor_class, "__init__")
                return f"{maker} on {self.where} raised {error}"
            case "actor died":
                return f"{actor} on {self.where} died of {error}"
            case "nobody waited":
                return f"{actor} on {self.where} died of {error} (no caller waited for its answer)"
            case "not handled":
                return f"{self.actor_class} on {self.where} failed: {self.message}"
            case "undeliverable":
                return f"a message to {actor} on {self.where} was not delivered: {self.message}"
            case "proc died":
                return f"{self.where} (pid {self.pid}) died{self._doing()}: {self.message}"
            case "host lost":
                return f"the host agent of {self.where} is gone: {self.message}"
            case "link lost":
                return f"the link to {self.where} on {self.host} is lost: {self.message}"
            case "never started":
                return f"{self.where} never started: {self.message}"
            case "stopped":
                return f"{self.where} was stopped: {self.message}"
            case "out of reach":
                return f"{self.where} is out of reach: {self.message}"

    def _doing(self) -> str:
        death = self.death
        if death is None or not death.endpoint:
            return ""
        since = death.endpoint_s
        long = "" if since is None or since < _LONG_S else f" for {since:.0f} s"
        earlier = " earlier," if self.died_before else ""
        return f"{earlier} while it ran {death.endpoint}{long}"

    @property
    def story(self) -> tuple[object, ...]:
        """A key that is equal for ranks that failed in the same way, with the same message."""
        return (self.kind, self.actor_class, self.endpoint, self.exception_type, self.message,
                self.frames, bool(self.restarted), len(self.earlier), self.behind,
                self.died_before, *(cause.story for cause in self.causes))  # fmt: skip

    @property
    def place(self) -> tuple[object, ...]:
        """A key that is equal for ranks that failed at the same place, with any message.

        A failure without frames has no place: its message stands in for it.
        """
        message = () if self.frames else (self.message,)
        return (self.kind, self.actor_class, self.endpoint, self.exception_type, message,
                self.frames, bool(self.restarted), len(self.earlier), self.died_before,
                tuple(exception.place for exception in self.behind),
                *(cause.place for cause in self.causes))  # fmt: skip

    def text(self) -> str:
        """`what`, then the user's frames, or the last lines of stderr of a dead process.

        Causes come before their consequences: the root first, then once each owner that passed the
        failure on.
        """
        causes = [failures_text(self.causes)] if self.causes else []
        return "\n".join([*causes, self._own_text()])

    def _own_text(self) -> str:
        description = self._consequence if self.causes else self._description
        lines = [description, *frames_text([frame for frame in self.frames if frame.user])]
        lines += behind_text(self.behind)
        if self.death and self.death.stderr_tail:
            lines.append("  last lines on its stderr:")
            lines += [f"    {line}" for line in self.death.last_lines]
        lines += [f"  {line}" for line in self.restart_lines]
        return "\n".join(lines)

    @property
    def restart_lines(self) -> list[str]:
        """Lines about the restarts of this rank, before and after this failure."""
        lines: list[str] = []
        if self.restarted:
            lines.append(
                "the process is being restarted, and its state in memory is lost; this call may "
                "have been done in part: call again"
            )
        if self.earlier:
            lines.append(f"it was restarted {_times(len(self.earlier))} before, after:")
            lines += [f"  {e.text()}, {e.ran_s:.1f} s after its start" for e in self.earlier]
            lines.append("its policy allows no further restart: find the cause, then spawn anew")
        return lines


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def at_text(point: dict[str, int]) -> str:
    """`[hosts=1, gpus=3]`; nothing for a mesh without dims."""
    return "[" + ", ".join(f"{dim}={at}" for dim, at in point.items()) + "]" if point else ""


def ranks_text(failures: Sequence[RankFailure]) -> str:
    """`gpus=1..3, gpus=6` for one dim; a bounded list of places for several."""
    return points_text([(f.point, f.mesh_name) for f in failures])


def points_text(points: Sequence[tuple[dict[str, int], str]]) -> str:
    """As `ranks_text`, for ranks given by their points and the names of their meshes."""
    dims = {tuple(point) for point, _ in points}  # of more than one mesh, they may differ
    if len(dims) == 1 and len(points[0][0]) == 1:
        dim = next(iter(points[0][0]))
        places = sorted(point[dim] for point, _ in points)
        runs: list[tuple[int, int]] = []
        for place in places:
            if runs and runs[-1][1] == place - 1:
                runs[-1] = (runs[-1][0], place)
            else:
                runs.append((place, place))
        return ", ".join(f"{dim}={a}" if a == b else f"{dim}={a}..{b}" for a, b in runs)
    shown = [at_text(point) or name for point, name in points[:8]]
    more = f" and {len(points) - 8} more" if len(points) > 8 else ""
    return ", ".join(shown) + more


def fold(failures: Sequence[RankFailure]) -> list[list[RankFailure]]:
    """Group failures with equal stories, by rank; groups are in order of their first failures."""
    groups: dict[tuple[object, ...], list[RankFailure]] = {}
    for failure in failures:
        groups.setdefault(failure.story, []).append(failure)
    return [sorted(group, key=_rank) for group in groups.values()]


def by_place(failures: Sequence[RankFailure]) -> list[list[list[RankFailure]]]:
    """Group the groups of `fold` once more: those that differ only in their messages are together.

    Ranks name themselves, or their devices, in their messages, and yet fail for the same reason.
    Places are in order of their first failures, since a later one may be a consequence. At one
    place, ranks fail in any order, so a report begins with the lowest of them.
    """
    places: dict[tuple[object, ...], list[list[RankFailure]]] = {}
    for group in fold(failures):
        places.setdefault(group[0].place, []).append(group)
    return [sorted(groups, key=lambda group: _rank(group[0])) for groups in places.values()]


def first_reported(failures: Sequence[RankFailure]) -> int:
    """The index of the failure that a report of them begins with."""
    place = failures[0].place
    alike = [at for at, failure in enumerate(failures) if failure.place == place]
    return min(alike, key=lambda at: _rank(failures[at]))


def _rank(failure: RankFailure) -> int:
    return failure.rank


def others_text(
    groups: Sequence[Sequence[RankFailure]],
    name: Callable[[Sequence[RankFailure]], str] = ranks_text,
) -> list[str]:
    """Lines about all ranks of one place but the first: their names, and some of their messages.

    `name` formats ranks.
    """
    first, *rest = groups
    lines = [f"and on {_more_ranks(len(first) - 1)}: {name(first[1:])}"] if len(first) > 1 else []
    if rest:
        lines.append(f"and on {_more_ranks(sum(map(len, rest)))}, in other words:")
        rest.sort(key=lambda group: min(tuple(failure.point.values()) for failure in group))
        rest = _distinct_first(rest, first[0])
        lines += [
            f"  {name(group)}: {_difference(group[0], first[0])}" for group in rest[:_MOST_WORDINGS]
        ]
        left = [failure for group in rest[_MOST_WORDINGS:] for failure in group]
        if left:
            lines.append(f"  {len(left)} more: {name(left)}")
    return lines


def _distinct_first(
    groups: Sequence[Sequence[RankFailure]], shown: RankFailure
) -> list[Sequence[RankFailure]]:
    """Each wording once, before the wordings that differ from one of them in numbers only.

    Among a hundred ranks that give their number, this shows the one with another reason.
    """
    seen = {_wording(shown)}
    odd: list[Sequence[RankFailure]] = []
    usual: list[Sequence[RankFailure]] = []
    for group in groups:
        wording = _wording(group[0])
        (usual if wording in seen else odd).append(group)
        seen.add(wording)
    return [*odd, *usual]


def _wording(failure: RankFailure) -> tuple[str, str]:
    cause, own = failure.first_cause.message, failure.message
    return cause.translate(_NO_DIGITS), own.translate(_NO_DIGITS)


def _more_ranks(count: int) -> str:
    return f"{count} more rank{'s' * (count > 1)}"


def _difference(failure: RankFailure, shown: RankFailure) -> str:
    """The message of `failure` that differs from the failure already shown, in one line."""
    message = failure.first_cause.message
    if message == shown.first_cause.message:
        message = failure.message
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST_WORDING else f"{line[:_LONGEST_WORDING]}..."


def failures_text(failures: Sequence[RankFailure]) -> str:
    """Every distinct failure once, each with the ranks that share it."""
    parts: list[str] = []
    for groups in by_place(failures):
        parts += [groups[0][0].text(), *others_text(groups)]
    return "\n".join(parts)


class MeshFailure(msgspec.Struct, frozen=True, eq=False):
    """The argument of `__supervise__` and `unhandled_fault_hook`. `mesh` is the failed mesh."""

    mesh_name: str
    failures: tuple[RankFailure, ...]
    mesh: object = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MeshFailure):
            return NotImplemented
        return (self.mesh_name, self.failures) == (other.mesh_name, other.failures)

    def __hash__(self) -> int:
        return hash(self.mesh_name)

    def __repr__(self) -> str:
        return f"MeshFailure(mesh_name={self.mesh_name!r}, failures={self.failures!r})"

    def report(self) -> str:
        """The failures in words, equal ones folded."""
        return failures_text(self.failures)

    def __str__(self) -> str:
        return f"{self.mesh_name} has failed: {self.report()}"


class Undeliverable(msgspec.Struct, frozen=True):
    """The argument of `Actor._handle_undeliverable_message`: a message returned to its sender.

    `failure` says as data where the message was sent, and why it did not arrive.
    """

    _sender: str
    _dest: str
    failure: RankFailure

    def sender(self) -> str:
        """The id of the actor that sent it."""
        return self._sender

    def dest(self) -> str:
        """The id of the actor, or of the port, that it was sent to."""
        return self._dest

    def error_msg(self) -> str:
        """Why it did not arrive."""
        return self.failure.what

    def __str__(self) -> str:
        return f"from {self._sender} to {self._dest}: {self.failure.what}"


MOST_CAUSES = 8


_LEAN_TEXT = 4096


def as_causes(failures: Sequence[RankFailure]) -> tuple[RankFailure, ...]:
    """Bound these failures in number and size, to be the `causes` of another failure.

    A failure that passes through many owners would otherwise grow at each.
    """
    return tuple(_lean(failure) for failure in failures[:MOST_CAUSES])


def _lean(failure: RankFailure) -> RankFailure:
    frames = failure.frames
    if len(frames) > FIRST_FRAMES + LAST_FRAMES:
        frames = frames[:FIRST_FRAMES] + frames[-LAST_FRAMES:]
    message = failure.message
    if len(message) > _LEAN_TEXT:
        message = message[:_LEAN_TEXT] + " ..."
    return replace(
        failure, message=message, traceback=failure.traceback[-_LEAN_TEXT:], frames=frames,
        causes=failure.causes[:1],
    )  # fmt: skip


def shown_point(proc: dict[str, int], actor: dict[str, int]) -> dict[str, int]:
    """The point to show for an actor, behind the name of its proc mesh.

    Args:
        proc: the point of its proc in that mesh.
        actor: its point in the mesh that it was spawned on, which may be a slice of the proc mesh,
            with other dims.

    Returns:
        `actor` if it has dims of its own, such as `{"dp": 1, "tp": 0}`, which cannot be mistaken
        for another proc. With the dims of the proc mesh, `proc`: the second rank of
        `procs.slice(gpus=slice(2, 4))` is `gpus=3`, as in output, logs and stacks.
    """
    if actor.keys() <= proc.keys() or any(proc.get(dim, at) != at for dim, at in actor.items()):
        return proc
    return actor


def of_bootstrap(failure: RankFailure) -> bool:
    """Whether a bootstrap function has raised, so that its proc never started an actor."""
    return failure.kind == "constructor" and not failure.actor_class


def for_later_call(failure: RankFailure) -> RankFailure:
    """The same failure, reported for a call that was made after it."""
    return failure if failure.death is None else replace(failure, died_before=True)


def for_mesh(failure: RankFailure, mesh_name: str, rank: int, point: dict[str, int]) -> RankFailure:
    """The same failure, reported for another mesh that contains the same process."""
    return replace(failure, mesh_name=mesh_name, rank=rank, point=point)
