"""What is told of a failure: facts first, and words made of them. No I/O.

A `RankFailure` is what happened to one rank: plain data, sent between processes as it is. Errors
(`monarch._src.errors`), supervisors and front ends carry it, and word themselves from it when they
are shown, equal stories of many ranks told once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

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


_WORDINGS = 3  # of one failure that are told, beside the first
_LONGEST_WORDS = 200
_NO_DIGITS = str.maketrans("", "", "0123456789")
_LONG_S = 10.0  # below that, for how long something ran explains nothing


class OutOfMemory(msgspec.Struct, frozen=True):
    """What is known of a want of memory that ended something; figures in bytes, None: not known.

    `where`: the kernel killed the process because its `cgroup`, or the whole host, had run full; or
    Python could not allocate; or CUDA could not. `limit` is how much the cgroup, or the process,
    may have; `held` what the process held at most (of Python: when it failed). `kills` is by how
    much the kernel's count of such kills rose. It counts them by cgroup: where the cgroup is
    `shared` with other processes, another one may have been meant.
    """

    where: Literal["cgroup", "host", "python", "cuda"]
    limit: int | None = None
    held: int | None = None
    cgroup: str = ""
    kills: int = 0
    shared: bool = False

    def text(self) -> str:
        """What is known, as the end of a sentence."""
        held = "" if self.held is None else f"it held {_bytes_text(self.held)}"
        match self.where:
            case "cgroup":
                limit = "" if self.limit is None else f", which may hold {_bytes_text(self.limit)},"
                said = f"the kernel's count of kills for memory in its cgroup {self.cgroup}{limit}"
                said += f" rose by {self.kills}"
                held = held and f"{held} at most"
            case "host":
                said = f"the kernel's count of kills for memory on this host rose by {self.kills}"
                held = held and f"{held} at most"
            case "python":
                limit = "" if self.limit is None else f" and may have {_bytes_text(self.limit)}"
                said, held = "", held and held + limit
            case "cuda":
                said = held = ""
        what = "out of GPU memory" if self.where == "cuda" else "out of memory"
        if self.shared or self.where == "host":
            what = f"probably {what}"
            said += " since the last look at it"
        return ": ".join(part for part in (what, "; ".join(x for x in (said, held) if x)) if part)


def _bytes_text(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


class Death(msgspec.Struct, frozen=True):
    """Why a process ended, as its host agent saw it from outside.

    `endpoint` is what it ran when it ended (None: idle), for `endpoint_s` seconds by then; `ran_s`
    for how many seconds the process lived, `stderr_tail` its last lines on stderr, 50 at most.
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
        """One line: the reason, and what it did then."""
        doing = f" while it ran {self.endpoint}" if self.endpoint else ""
        return f"{self.reason}{doing}"


class RankFailure(msgspec.Struct, frozen=True):
    """What happened to one rank. `kind` says which story the other fields tell.

    `restarted`: the rank is being started again, for the so-maniest time (0: it is not). `earlier`:
    the ends of the lives that this one followed, the oldest first, as far as they counted for the
    limit that it has reached. `behind`: the exceptions that this one came of, or holds.
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
    # Of an owner, or of what had called: of which failures this one came, the first one first.
    causes: tuple[RankFailure, ...] = ()
    behind: tuple[Behind, ...] = ()

    @property
    def first_cause(self) -> RankFailure:
        """What happened at the bottom of it all; this one itself if it came of no other."""
        return self.causes[0].first_cause if self.causes else self

    @property
    def where(self) -> str:
        """`workers[gpus=3]`, the way a user would write the slice."""
        return self.mesh_name + at_text(self.point)

    @property
    def what(self) -> str:
        """One line: who, where and what, without the frames; the first cause first."""
        if self.causes:
            return f"{self.causes[0].what}; {self._then}"
        return self._what

    @property
    def _then(self) -> str:
        """What came of its causes."""
        if self.kind == "not handled":
            owner = self.actor_class
            if not owner:
                return f"{self.message}, so {self.where} is told to have failed"
            role = "sender" if self.causes[0].kind == "undeliverable" else "owner"
            return f"so {owner} on {self.where}, its {role}, failed: {self.message}"
        return f"so {self._what}"

    @property
    def _what(self) -> str:
        method = f".{self.endpoint}" if self.endpoint else ""
        actor = f"{self.actor_class}{method}"
        said = f"{self.exception_type}: {self.message}" if self.message else self.exception_type
        if self.memory is not None:
            said += f" ({self.memory.text()})"
        match self.kind:
            case "endpoint":
                return f"{actor} on {self.where} raised {said}"
            case "constructor":
                if not self.actor_class:  # what its proc has to run before any actor
                    return f"{self.endpoint} on {self.where} raised {said}"
                return f"{self.actor_class}.__init__ on {self.where} raised {said}"
            case "actor died":
                return f"{actor} on {self.where} died of {said}"
            case "nobody waited":
                return f"{actor} on {self.where} died of {said} (nobody waited for its answer)"
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
        return f" while it ran {death.endpoint}{long}"

    @property
    def story(self) -> tuple[object, ...]:
        """What must be equal for two ranks to have failed in the same way."""
        return (self.kind, self.actor_class, self.endpoint, self.exception_type, self.message,
                self.frames, bool(self.restarted), len(self.earlier), self.behind,
                *(cause.story for cause in self.causes))  # fmt: skip

    @property
    def place(self) -> tuple[object, ...]:
        """What must be equal for two ranks to have failed at one place, whatever they said of it.

        Where no frame tells the place, the words do.
        """
        said = () if self.frames else (self.message,)
        return (self.kind, self.actor_class, self.endpoint, self.exception_type, said,
                self.frames, bool(self.restarted), len(self.earlier),
                tuple(one.place for one in self.behind),
                *(cause.place for cause in self.causes))  # fmt: skip

    def text(self) -> str:
        """`what`, then the user's frames, or the last lines of stderr of a dead process.

        What came of causes is told behind them: first what happened at the bottom, then each owner
        that it went through, once.
        """
        told = [failures_text(self.causes)] if self.causes else []
        return "\n".join([*told, self._own_text()])

    def _own_text(self) -> str:
        what = self._then if self.causes else self._what
        lines = [what, *frames_text([frame for frame in self.frames if frame.user])]
        lines += behind_text(self.behind)
        if self.death and self.death.stderr_tail:
            lines.append("  last lines on its stderr:")
            lines += [f"    {line}" for line in self.death.stderr_tail[-8:]]
        lines += [f"  {line}" for line in self.lives]
        return "\n".join(lines)

    @property
    def lives(self) -> list[str]:
        """Lines about the lives of a rank that is started again, before and after this failure."""
        lines: list[str] = []
        if self.restarted:
            lines.append(
                "it is started again, and what it held in memory is lost; this call may have "
                "been done in part: call again"
            )
        if self.earlier:
            lines.append(f"it has been started again {_times(len(self.earlier))} before, after:")
            lines += [f"  {e.text()}, {e.ran_s:.1f} s after its start" for e in self.earlier]
            lines.append("and by its policy not once more: look for the cause, then spawn anew")
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
    """The same of ranks by where they are: their points, and the names of their meshes."""
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
    """Group failures that tell the same story, in the order in which each story was first told."""
    groups: dict[tuple[object, ...], list[RankFailure]] = {}
    for failure in failures:
        groups.setdefault(failure.story, []).append(failure)
    return list(groups.values())


def by_place(failures: Sequence[RankFailure]) -> list[list[list[RankFailure]]]:
    """As `fold`, and those groups together that differ in nothing but their words.

    Each rank names itself, or its device, in what it says: that makes no other failure of it.
    """
    places: dict[tuple[object, ...], list[list[RankFailure]]] = {}
    for group in fold(failures):
        places.setdefault(group[0].place, []).append(group)
    return list(places.values())


def others_text(
    groups: Sequence[Sequence[RankFailure]],
    name: Callable[[Sequence[RankFailure]], str] = ranks_text,
) -> list[str]:
    """Lines about all ranks of such groups but the first: which, and some of what they said.

    `name`: names ranks.
    """
    first, *rest = groups
    lines = [f"and on {_more_ranks(len(first) - 1)}: {name(first[1:])}"] if len(first) > 1 else []
    if rest:
        lines.append(f"and on {_more_ranks(sum(map(len, rest)))}, in other words:")
        rest.sort(key=lambda group: min(tuple(one.point.values()) for one in group))
        rest = _odd_first(rest, first[0])
        lines += [f"  {name(group)}: {_words(group[0], first[0])}" for group in rest[:_WORDINGS]]
        left = [one for group in rest[_WORDINGS:] for one in group]
        if left:
            lines.append(f"  {len(left)} more: {name(left)}")
    return lines


def _odd_first(
    groups: Sequence[Sequence[RankFailure]], known: RankFailure
) -> list[Sequence[RankFailure]]:
    """Each wording once before any that differs from one of them in numbers only.

    Among a hundred ranks that give their number, the one with another reason is to be seen.
    """
    seen = {_wording(known)}
    odd: list[Sequence[RankFailure]] = []
    usual: list[Sequence[RankFailure]] = []
    for group in groups:
        wording = _wording(group[0])
        (usual if wording in seen else odd).append(group)
        seen.add(wording)
    return [*odd, *usual]


def _wording(failure: RankFailure) -> tuple[str, str]:
    said = (failure.first_cause.message, failure.message)
    return said[0].translate(_NO_DIGITS), said[1].translate(_NO_DIGITS)


def _more_ranks(count: int) -> str:
    return f"{count} more rank{'s' * (count > 1)}"


def _words(failure: RankFailure, known: RankFailure) -> str:
    """In one line, what that one says otherwise than the one that is known."""
    said = failure.first_cause.message
    if said == known.first_cause.message:
        said = failure.message
    line = " ".join(said.split())
    return line if len(line) <= _LONGEST_WORDS else f"{line[:_LONGEST_WORDS]}..."


def failures_text(failures: Sequence[RankFailure]) -> str:
    """Every distinct failure once, each with the ranks that share it."""
    parts: list[str] = []
    for groups in by_place(failures):
        parts += [groups[0][0].text(), *others_text(groups)]
    return "\n".join(parts)


class MeshFailure(msgspec.Struct, frozen=True, eq=False):
    """What `__supervise__` and `unhandled_fault_hook` are told. `mesh` is the mesh that failed."""

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
    """What `Actor._handle_undeliverable_message` is given: a message that came back to its sender.

    `failure` tells to whom it was sent, and why it did not arrive, as data.
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
    """These as the causes of another failure: bounded, as a failure of many owners above is.

    The first is kept whole but for what nobody is shown of it; of others, what tells them apart.
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


def told_point(proc: dict[str, int], actor: dict[str, int]) -> dict[str, int]:
    """Where an actor is, as users are told, behind the name of its mesh of procs.

    Args:
        proc: the place of its proc in that mesh.
        actor: its own in the mesh that it was spawned in, which may be a slice of that one, with
            other dims.

    Its own, if its dims are its own: of `{"dp": 1, "tp": 0}` nobody thinks it is another proc. In
    dims of the mesh of procs, that of its proc: the second of `procs.slice(gpus=slice(2, 4))` is
    `gpus=3`, as in output, logs and stacks.
    """
    if actor.keys() <= proc.keys() or any(proc.get(dim, at) != at for dim, at in actor.items()):
        return proc
    return actor


def of_bootstrap(failure: RankFailure) -> bool:
    """Whether a bootstrap function has raised, and so no actor of that proc ever lived."""
    return failure.kind == "constructor" and not failure.actor_class


def moved(failure: RankFailure, mesh_name: str, rank: int, point: dict[str, int]) -> RankFailure:
    """The same failure, told of another mesh that stands on the same process."""
    return replace(failure, mesh_name=mesh_name, rank=rank, point=point)
