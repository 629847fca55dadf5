"""Messages between kernel and page about meshes and values. No I/O.

The page's side is `widgets/js/protocol.js`, which every widget and the side panel use. Requests of
pages are in `requests.py`.

Invariants: each delta's `seq` is one above the message before it, and a snapshot has that of the
last delta, so a reader that misses one sees a gap; a delta names all and only the meshes and rows
that a reader of the messages before it doesn't know yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, cast

from monarch_jupyter.rendering.cell_names import place_text
from monarch_jupyter.rendering.meshes import failed_lines

if TYPE_CHECKING:
    from monarch.observe import MeshSnapshot, RankRow

COMM_TARGET = "monarch.meshes"
Debugged: TypeAlias = "Mapping[str, tuple[int, ...]]"
"""By uid of a mesh, its ranks that JupyterLab's debugger debugs."""


class RowMessage(TypedDict):
    """One rank. `since_s` is seconds in this state when the message was made; `rss_mib` is MiB.

    `errors` of its `messages` failed; it was started again `restarts` times. `where`: function,
    file and line of one that is paused.
    """

    rank: int
    point: dict[str, int]
    pid: int | None
    state: str
    actor: str | None
    endpoint: str | None
    since_s: float
    messages: int
    rss_mib: float | None
    failure: str | None
    errors: int
    restarts: int
    where: str | None


class MeshMessage(TypedDict):
    """One mesh and rows of it: all in a snapshot, the changed ones in a delta.

    `debugged`: the ranks that JupyterLab's debugger is on. `failed`: a line for each mesh of actors
    that has failed on ranks which live on.
    """

    uid: str
    name: str
    host: str
    state: str
    sizes: dict[str, int]
    actors: list[str]
    failed: list[str]
    debugged: list[int]
    age_s: float
    rows: list[RowMessage]


class SnapshotMessage(TypedDict):
    """Everything, to start from."""

    type: Literal["snapshot"]
    seq: int
    meshes: list[MeshMessage]


class DeltaMessage(TypedDict):
    """Changes since the message before; `gone` lists uids of meshes that have ended."""

    type: Literal["delta"]
    seq: int
    meshes: list[MeshMessage]
    gone: list[str]


class ValuesMessage(TypedDict):
    """The values of a grid, by rank, to start from.

    `numbers` is None unless all of them are some; the number of one that is not finite is None.
    `indices`: for each dim, the index to show for each of its indices, which are others in a slice;
    `fixed`: the indices of the dims that a slice has dropped. `dims` are all of them, in order.
    """

    type: Literal["values"]
    seq: int
    sizes: dict[str, int]
    dims: list[str]
    indices: dict[str, list[int]]
    fixed: dict[str, int]
    numbers: list[float | None] | None
    texts: list[str]


class ValuesDeltaMessage(TypedDict):
    """The changed values of these ranks since the message before; fields as in `values`."""

    type: Literal["values_delta"]
    seq: int
    ranks: list[int]
    numbers: list[float | None] | None
    texts: list[str]


class BarMessage(TypedDict):
    """One piece of slow work: `done` of `total`, which `unit` counts, under way for `for_s`.

    `total` is None if it is not known.
    """

    key: str
    what: str
    done: int
    total: int | None
    unit: str
    late: str
    for_s: float


class BarsMessage(TypedDict):
    """The bars of a cell, to start from."""

    type: Literal["bars"]
    seq: int
    bars: list[BarMessage]


class BarsDeltaMessage(TypedDict):
    """Bars that are new or have changed, and the keys of bars that are gone."""

    type: Literal["bars_delta"]
    seq: int
    bars: list[BarMessage]
    gone: list[str]


class AnswerMessage(TypedDict):
    """The answer to a view's request with that `id`: an error in one line, or the result."""

    type: Literal["answer"]
    view: str
    id: int
    error: str | None
    result: object


class MoreMessage(TypedDict):
    """There are new lines since the last request; sent once until a view asks again."""

    type: Literal["more"]


class SyncMessage(TypedDict):
    """From a page that starts or has missed a message: send a snapshot.

    A widget names its `view`, of which it may have several; the panel is the only one on its comm.
    """

    type: Literal["sync"]
    view: str


class LeaveMessage(TypedDict):
    """From a widget: this view is off the page."""

    type: Literal["leave"]
    view: str


class AskMessage(TypedDict):
    """From any view: carry out the request `what`, and answer under this `id`."""

    type: Literal["ask"]
    view: str
    id: int
    what: object


GridMessage = ValuesMessage | ValuesDeltaMessage
StreamMessage = SnapshotMessage | DeltaMessage | GridMessage | BarsMessage | BarsDeltaMessage
KernelMessage = StreamMessage | AnswerMessage | MoreMessage
PageMessage = SyncMessage | LeaveMessage | AskMessage


def parse_page_message(content: object) -> PageMessage | None:
    """The message in `content`; None if it is unknown, as from a newer page."""
    if not isinstance(content, dict):
        return None
    fields = cast("dict[object, object]", content)
    kind, view, number = fields.get("type"), fields.get("view", ""), fields.get("id")
    if not isinstance(view, str):
        return None
    if kind == "sync":
        return SyncMessage(type="sync", view=view)
    if kind == "leave":
        return LeaveMessage(type="leave", view=view)
    if kind == "ask" and isinstance(number, int):
        return AskMessage(type="ask", view=view, id=number, what=fields.get("what"))
    return None


def answer_message(ask: AskMessage, error: str | None, result: object) -> AnswerMessage:
    """The answer to a request."""
    return AnswerMessage(type="answer", view=ask["view"], id=ask["id"], error=error, result=result)


def mesh_message(
    mesh: MeshSnapshot, rows: Sequence[RankRow] | None = None, debugged: Sequence[int] = ()
) -> MeshMessage:
    """A mesh as a message, with all its rows or the given ones."""
    return MeshMessage(
        uid=mesh.uid,
        name=mesh.name,
        host=mesh.host,
        state=mesh.state,
        sizes=dict(mesh.sizes),
        actors=list(mesh.actors),
        failed=failed_lines(mesh),
        debugged=list(debugged),
        age_s=round(mesh.age_s, 3),
        rows=[_row_message(row) for row in (mesh.rows if rows is None else rows)],
    )


def _row_message(row: RankRow) -> RowMessage:
    return RowMessage(
        rank=row.rank,
        point=dict(row.point),
        pid=row.pid,
        state=row.state,
        actor=row.actor,
        endpoint=row.endpoint,
        since_s=round(row.since_s, 3),
        messages=row.messages,
        rss_mib=None if row.rss_mib is None else round(row.rss_mib, 1),
        failure=row.failure,
        errors=row.errors,
        restarts=row.restarts,
        where=None if row.place is None else place_text(row.place),
    )


class MeshTable:
    """The meshes as the readers of one stream know them."""

    def __init__(self) -> None:
        self._seq = 0
        self._meshes: dict[str, MeshSnapshot] = {}
        # The rows as last sent; `_meshes` is newer in fields that do not count as changes.
        self._sent: dict[str, dict[int, RankRow]] = {}
        self._debugged: Debugged = {}

    def update(
        self, meshes: Sequence[MeshSnapshot], debugged: Debugged | None = None
    ) -> DeltaMessage | None:
        """The message that brings readers up to date with `meshes`; None if nothing changed."""
        before, self._debugged = self._debugged, debugged or {}
        changed: list[MeshMessage] = []
        for mesh in meshes:
            known, sent = self._meshes.get(mesh.uid), self._sent.setdefault(mesh.uid, {})
            rows = [row for row in mesh.rows if not _same_row(sent.get(row.rank), row)]
            here = self._debugged.get(mesh.uid, ())
            moved = here != before.get(mesh.uid, ())
            if rows or moved or known is None or not _same_head(known, mesh):
                changed.append(mesh_message(mesh, rows, here))
                sent.update((row.rank, row) for row in rows)
        gone = [uid for uid in self._meshes if all(uid != mesh.uid for mesh in meshes)]
        self._meshes = {mesh.uid: mesh for mesh in meshes}
        for uid in gone:
            del self._sent[uid]
        if not changed and not gone:
            return None
        self._seq += 1
        return DeltaMessage(type="delta", seq=self._seq, meshes=changed, gone=gone)

    def snapshot(self) -> SnapshotMessage:
        """All meshes of the last update, under the number of the last message."""
        meshes = [
            mesh_message(mesh, debugged=self._debugged.get(mesh.uid, ()))
            for mesh in self._meshes.values()
        ]
        return SnapshotMessage(type="snapshot", seq=self._seq, meshes=meshes)


def _same_head(before: MeshSnapshot, now: MeshSnapshot) -> bool:
    return (
        before.name == now.name
        and before.host == now.host
        and before.state == now.state
        and before.sizes == now.sizes
        and before.actors == now.actors
        and before.failed == now.failed
    )


def _same_row(before: RankRow | None, now: RankRow) -> bool:
    """Equal except for times, and for memory changes up to the larger of 1 MiB and 5 %."""
    if before is None:
        return False
    if not _same_memory(before.rss_mib, now.rss_mib):
        return False
    return (
        before.point == now.point
        and before.pid == now.pid
        and before.state == now.state
        and before.actor == now.actor
        and before.endpoint == now.endpoint
        and before.messages == now.messages
        and before.failure == now.failure
        and before.errors == now.errors
        and before.restarts == now.restarts
        and before.place == now.place
    )


def _same_memory(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before == now
    return abs(now - before) <= max(1.0, before / 20)


class LastSeen:
    """The last known state of each mesh of a stream, also of meshes that have ended."""

    def __init__(self) -> None:
        self._meshes: dict[str, MeshMessage] = {}

    def take(self, message: StreamMessage) -> None:
        """Record the meshes of a message."""
        if message["type"] != "snapshot" and message["type"] != "delta":
            return
        for mesh in message["meshes"]:
            known = self._meshes.get(mesh["uid"])
            rows = {row["rank"]: row for row in (known["rows"] if known else ())}
            rows.update((row["rank"], row) for row in mesh["rows"])
            seen = mesh.copy()
            seen["rows"] = [rows[rank] for rank in sorted(rows)]
            self._meshes[mesh["uid"]] = seen

    def of(self, uid: str) -> MeshMessage | None:
        """An ended mesh as a page shows it, with its ranks stopped."""
        mesh = self._meshes.get(uid)
        if mesh is None:
            return None
        ended = mesh.copy()
        ended["state"], ended["debugged"] = "stopped", []
        ended["rows"] = [_ended(row) for row in mesh["rows"]]
        return ended


def _ended(row: RowMessage) -> RowMessage:
    if row["state"] == "failed":
        return row
    ended = row.copy()
    ended["state"], ended["endpoint"] = "stopped", None
    return ended
