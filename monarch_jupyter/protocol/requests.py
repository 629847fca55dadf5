"""Requests of pages, parsed and checked. No I/O.

The page's side is `widgets/js/protocol.js`, type `Request`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from monarch_jupyter.errors import CommandError

T = TypeVar("T")


@dataclass(frozen=True)
class StopRanks:
    """Stop or `kill` the calls of these ranks of a mesh (by uid), or, without ranks, the mesh."""

    mesh: str
    ranks: tuple[int, ...] | None
    kill: bool


@dataclass(frozen=True)
class ShowStacks:
    """The stacks of these ranks."""

    mesh: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class InspectActors:
    """The actors of this rank with their attributes."""

    mesh: str
    rank: int


@dataclass(frozen=True)
class ReadUsage:
    """The samples of what each rank of a mesh uses that are newer than the one numbered `after`."""

    mesh: str
    after: int


@dataclass(frozen=True)
class ReadTimeline:
    """The calls of a mesh that ended after that time, in seconds since 1970."""

    mesh: str
    after_s: float


@dataclass(frozen=True)
class Restart:
    """Start these ranks of a mesh again in their places; without ranks, spawn the mesh again."""

    mesh: str
    ranks: tuple[int, ...] | None


@dataclass(frozen=True)
class DebugInLab:
    """JupyterLab's own debugger on these ranks of a mesh; without ranks, on the kernel again."""

    mesh: str
    ranks: tuple[int, ...] | None


@dataclass(frozen=True)
class Lines:
    """A page of lines of ranks. `mesh` is a name, None for all; `page` None is the newest.

    `cell` is the number of the cell that caused it, None for any.
    """

    mesh: str | None
    cell: int | None
    ranks: tuple[int, ...] | None
    grep: str
    page: int | None


@dataclass(frozen=True)
class Spawn:
    """Make a mesh and bind it in the notebook."""

    name: str
    sizes: dict[str, int]
    keep: bool


@dataclass(frozen=True)
class Attach:
    """Attach to a kept session and bind its meshes in the notebook."""

    name: str


@dataclass(frozen=True)
class ListSessions:
    """The sessions of this user on this machine."""


@dataclass(frozen=True)
class OpenConsole:
    """Open the console of one rank; one that is not paused is paused first."""

    mesh: str
    rank: int


@dataclass(frozen=True)
class Resume:
    """Resume these ranks from their breakpoints."""

    mesh: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class SendCommand:
    """A line for the debugger of that console."""

    console: int
    text: str


@dataclass(frozen=True)
class Complete:
    """Completions of the last word of a line in that console."""

    console: int
    text: str


@dataclass(frozen=True)
class Standing:
    """The state of that console; another client may have resumed its rank."""

    console: int


@dataclass(frozen=True)
class CloseConsole:
    """Close that console; its rank stays paused."""

    console: int


Request = (
    StopRanks | Restart | ShowStacks | InspectActors | ReadUsage | ReadTimeline | DebugInLab | Lines
    | Spawn | Attach | ListSessions | OpenConsole | Resume | SendCommand | Complete | Standing
    | CloseConsole
)  # fmt: skip


def parse_request(content: object) -> Request:
    """The request in `content`.

    Raises:
        CommandError: the request is unknown or invalid, as from a page of another version.
    """
    fields = cast("Mapping[str, object]", content if isinstance(content, dict) else {})
    kind = fields.get("do")
    parser = _PARSERS.get(kind) if isinstance(kind, str) else None
    if parser is None:
        raise CommandError(
            f"the page asks for {kind!r}, which this kernel does not know: page and kernel have "
            "different versions of monarch-jupyter; install the same one, and reload the page"
        )
    return parser(fields)


def _read(fields: Mapping[str, object], name: str, read: Callable[[object], T | None]) -> T:
    value = read(fields.get(name))
    if value is None:
        raise CommandError(f"the page's request has no valid {name!r}: {fields.get(name)!r}")
    return value


def _read_optional(
    fields: Mapping[str, object], name: str, read: Callable[[object], T | None]
) -> T | None:
    return None if fields.get(name) is None else _read(fields, name, read)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < math.inf else None  # NaN is neither


def _ranks(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    numbers = [_integer(item) for item in cast("list[object]", value)]
    return None if None in numbers else tuple(n for n in numbers if n is not None)


def _one_rank(value: object) -> int | None:
    ranks = _ranks(value)
    return ranks[0] if ranks is not None and len(ranks) == 1 else None


def _sizes(value: object) -> dict[str, int] | None:
    if not isinstance(value, dict):
        return None
    sizes: dict[str, int] = {}
    for dim, size in cast("dict[object, object]", value).items():
        number = _integer(size)
        if not isinstance(dim, str) or number is None:
            return None
        sizes[dim] = number
    return sizes


def _mesh(fields: Mapping[str, object]) -> str:
    return _read(fields, "mesh", _text)


def _console(fields: Mapping[str, object]) -> int:
    return _read(fields, "console", _integer)


_PARSERS: Mapping[str, Callable[[Mapping[str, object]], Request]] = {
    "stop": lambda f: StopRanks(_mesh(f), _read_optional(f, "ranks", _ranks), kill=False),
    "kill": lambda f: StopRanks(_mesh(f), _read_optional(f, "ranks", _ranks), kill=True),
    "stacks": lambda f: ShowStacks(_mesh(f), _read(f, "ranks", _ranks)),
    "actors": lambda f: InspectActors(_mesh(f), _read(f, "ranks", _one_rank)),
    "usage": lambda f: ReadUsage(_mesh(f), _read(f, "after", _integer)),
    "timeline": lambda f: ReadTimeline(_mesh(f), _read(f, "after_s", _seconds)),
    "restart": lambda f: Restart(_mesh(f), _read_optional(f, "ranks", _ranks)),
    "debug_in_lab": lambda f: DebugInLab(_mesh(f), _read_optional(f, "ranks", _ranks)),
    "lines": lambda f: Lines(
        mesh=_read_optional(f, "mesh", _text),
        cell=_read_optional(f, "cell", _integer),
        ranks=_read_optional(f, "ranks", _ranks),
        grep=_read(f, "grep", _text),
        page=_read_optional(f, "page", _integer),
    ),
    "spawn": lambda f: Spawn(
        _read(f, "name", _text), _read(f, "sizes", _sizes), f.get("keep") is True
    ),
    "attach": lambda f: Attach(_read(f, "name", _text)),
    "sessions": lambda _: ListSessions(),
    "console": lambda f: OpenConsole(_mesh(f), _read(f, "ranks", _one_rank)),
    "resume": lambda f: Resume(_mesh(f), _read(f, "ranks", _ranks)),
    "say": lambda f: SendCommand(_console(f), _read(f, "text", _text)),
    "complete": lambda f: Complete(_console(f), _read(f, "text", _text)),
    "standing": lambda f: Standing(_console(f)),
    "let_go": lambda f: CloseConsole(_console(f)),
}
"""Parsers by the request's `do` field."""
