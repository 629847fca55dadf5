"""What kernel and browser say to each other about meshes, and what changed since. No I/O.

The TypeScript side is `labextension/src/wire.ts`; the explorer's is `widgets/explorer.js`.

Invariants: each delta's `seq` is one above the message before it, and a snapshot has that of the
last delta, so a reader that misses one sees a gap; a delta names all and only the meshes and rows
that a reader of the messages before it doesn't know yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, cast

if TYPE_CHECKING:
    from monarch.observe import MeshSnapshot, RankRow

COMM_TARGET = "monarch.meshes"


class RowMessage(TypedDict):
    """One rank. `since_s` is seconds in this state when the message was made; `rss_mib` is MiB.

    `errors` of its `messages` failed.
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


class MeshMessage(TypedDict):
    """One mesh and rows of it: all in a snapshot, the changed ones in a delta."""

    uid: str
    name: str
    host: str
    state: str
    sizes: dict[str, int]
    actors: list[str]
    age_s: float
    rows: list[RowMessage]


class SnapshotMessage(TypedDict):
    """Everything, to start from."""

    type: Literal["snapshot"]
    seq: int
    meshes: list[MeshMessage]


class DeltaMessage(TypedDict):
    """What is new since the message before; `gone` lists uids of meshes that are no more."""

    type: Literal["delta"]
    seq: int
    meshes: list[MeshMessage]
    gone: list[str]


class SyncMessage(TypedDict):
    """From the front end: send me a snapshot, I start or I missed something.

    An explorer names its `view`, of which one widget may have several; the panel is the only one
    on its comm.
    """

    type: Literal["sync"]
    view: str


class LeaveMessage(TypedDict):
    """From an explorer: this view is off the page."""

    type: Literal["leave"]
    view: str


KernelMessage = SnapshotMessage | DeltaMessage
PageMessage = SyncMessage | LeaveMessage


def parse_page_message(content: object) -> PageMessage | None:
    """The message in `content`; None if it is none of ours, as a newer page may send."""
    if not isinstance(content, dict):
        return None
    fields = cast("dict[object, object]", content)
    kind, view = fields.get("type"), fields.get("view", "")
    if not isinstance(view, str):
        return None
    if kind == "sync":
        return SyncMessage(type="sync", view=view)
    if kind == "leave":
        return LeaveMessage(type="leave", view=view)
    return None


def mesh_message(mesh: MeshSnapshot, rows: Sequence[RankRow] | None = None) -> MeshMessage:
    """A mesh as the wire has it, with all its rows or those given."""
    return MeshMessage(
        uid=mesh.uid,
        name=mesh.name,
        host=mesh.host,
        state=mesh.state,
        sizes=dict(mesh.sizes),
        actors=list(mesh.actors),
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
    )


class MeshTable:
    """What the readers of one stream of messages know."""

    def __init__(self) -> None:
        self._seq = 0
        self._meshes: dict[str, MeshSnapshot] = {}
        # The rows as last sent; `_meshes` is newer in what doesn't count as a change.
        self._sent: dict[str, dict[int, RankRow]] = {}

    def update(self, meshes: Sequence[MeshSnapshot]) -> DeltaMessage | None:
        """The message that takes the readers to `meshes`, or None when they know it all."""
        changed: list[MeshMessage] = []
        for mesh in meshes:
            known, sent = self._meshes.get(mesh.uid), self._sent.setdefault(mesh.uid, {})
            rows = [row for row in mesh.rows if not _same_row(sent.get(row.rank), row)]
            if rows or known is None or not _same_head(known, mesh):
                changed.append(mesh_message(mesh, rows))
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
        """All that the last update knew, under the number of the last message."""
        meshes = [mesh_message(mesh) for mesh in self._meshes.values()]
        return SnapshotMessage(type="snapshot", seq=self._seq, meshes=meshes)


def _same_head(before: MeshSnapshot, now: MeshSnapshot) -> bool:
    return (before.name, before.host, before.state, before.sizes, before.actors) == (
        now.name,
        now.host,
        now.state,
        now.sizes,
        now.actors,
    )


def _same_row(before: RankRow | None, now: RankRow) -> bool:
    """Equal but for the clock, and for memory by less than a MiB and a twentieth."""
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
    )


def _same_memory(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before == now
    return abs(now - before) <= max(1.0, before / 20)
