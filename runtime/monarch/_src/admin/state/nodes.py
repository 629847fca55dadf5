"""The nodes of the admin API: root, hosts, procs and actors, from rows of tables. No I/O.

Names are those of Monarch's admin API where a node has the same property. A property that is not
known is absent, never made up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from monarch._src.admin.state.references import ROOT, Reference
from monarch._src.failures.endpoint_text import endpoint_text
from monarch._src.failures.report import at_text

Row: TypeAlias = "Mapping[str, Any]"
BAD_STATES = ("failed",)


class RootProperties(msgspec.Struct, omit_defaults=True):
    """All hosts that this server observes."""

    num_hosts: int
    num_procs: int
    num_actors: int
    failed_procs: int
    failed_actors: int


class HostProperties(msgspec.Struct, omit_defaults=True):
    """A host agent, with its session."""

    addr: str
    session: str
    host: str
    num_procs: int
    failed_procs: int
    agent_pid: int | None = None
    cores: int | None = None
    serves: str | None = None


class ProcProperties(msgspec.Struct, omit_defaults=True):
    """A process: a rank of a proc mesh, or the client."""

    proc_name: str
    mesh: str
    rank: int
    point: dict[str, int]
    status: str
    num_actors: int
    failed_actor_count: int
    pid: int | None = None
    since_s: float | None = None
    running: str | None = None
    messages_processed: int | None = None
    errors: int | None = None
    busy_s: float | None = None
    rss_bytes: int | None = None
    restarts: int | None = None
    failure: str | None = None
    is_client: bool = False


class ActorProperties(msgspec.Struct, omit_defaults=True):
    """An actor."""

    name: str
    actor_type: str
    actor_status: str
    rank: int
    queue_depth: int
    running: str | None = None
    full_name: str | None = None


class ErrorProperties(msgspec.Struct):
    """A node whose state could not be read."""

    code: str
    message: str


class Properties(msgspec.Struct, omit_defaults=True):
    """The properties of a node: exactly one of these is there, and its name is the node's kind."""

    Root: RootProperties | None = None
    Host: HostProperties | None = None
    Proc: ProcProperties | None = None
    Actor: ActorProperties | None = None
    Error: ErrorProperties | None = None


class Missing(msgspec.Struct):
    """Rows that a snapshot lacks, because a host or process has not answered."""

    table: str
    where: str
    reason: str


class NodePayload(msgspec.Struct):
    """One node. `as_of` is in microseconds since the epoch."""

    identity: str
    properties: Properties
    children: list[str]
    parent: str | None
    as_of: int

    @property
    def kind(self) -> str:
        """root, host, proc, actor or error."""
        found = self.properties
        for name in ("Root", "Host", "Proc", "Actor"):
            if getattr(found, name) is not None:
                return name.lower()
        return "error"

    @property
    def failure(self) -> str | None:
        """Why the node, or a node below it, counts as failed; None if none does."""
        found = self.properties
        if found.Proc is not None:
            if found.Proc.status in BAD_STATES:
                return found.Proc.failure or "failed"
            return _some_failed(found.Proc.failed_actor_count, "actor")
        if found.Actor is not None:
            return "failed" if found.Actor.actor_status in BAD_STATES else None
        if found.Host is not None:
            return _some_failed(found.Host.failed_procs, "proc")
        if found.Root is not None:
            return _some_failed(found.Root.failed_procs, "proc") or _some_failed(
                found.Root.failed_actors, "actor"
            )
        return found.Error.message if found.Error is not None else None


def _some_failed(count: int, what: str) -> str | None:
    return f"{count:,} failed {what}{'s' * (count != 1)}" if count else None


class HostSource(msgspec.Struct, frozen=True):
    """A host agent that is asked: the name of its session, and the address that a worker serves."""

    session: str
    directory: str
    serves: str = ""


@dataclass(frozen=True)
class Cluster:
    """All nodes at one moment, parents before children. `number` counts the snapshots."""

    number: int
    as_of: int
    nodes: dict[str, NodePayload]
    missing: tuple[Missing, ...] = ()

    def validate(self) -> None:
        """Check that parents and children name each other.

        Raises:
            AssertionError: they do not.
        """
        for identity, node in self.nodes.items():
            assert identity == node.identity
            for child in node.children:
                assert self.nodes[child].parent == identity
            if node.parent is None:
                assert identity == "root"
            else:
                assert identity in self.nodes[node.parent].children


@dataclass
class _Proc:
    reference: Reference
    properties: ProcProperties
    actors: list[NodePayload] = field(default_factory=list[NodePayload])


def build(
    number: int,
    as_of: int,
    sources: Sequence[HostSource],
    tables: Mapping[str, Sequence[Row]],
    missing: Iterable[Missing] = (),
) -> Cluster:
    """The nodes of these rows of `hosts`, `procs` and `actors`, by the sources that were asked."""
    missing = tuple(missing)
    procs = _procs(tables.get("procs", ()))
    _add_actors(procs, tables.get("actors", ()), as_of)
    hosts = {str(row["session"]): row for row in tables.get("hosts", ())}
    nodes: list[NodePayload] = []
    references: list[str] = []
    for source in sources:
        found = _host_nodes(source, hosts.get(source.session), procs, missing, as_of)
        references.append(found[0].identity)
        nodes += found
    every = list(procs.values())
    root = RootProperties(
        len(references),
        len(every),
        sum(len(one.actors) for one in every),
        sum(one.properties.status in BAD_STATES for one in every),
        sum(one.properties.failed_actor_count for one in every),
    )
    first = NodePayload(str(ROOT), Properties(Root=root), references, None, as_of)
    return Cluster(number, as_of, {node.identity: node for node in [first, *nodes]}, missing)


def _procs(rows: Sequence[Row]) -> dict[Reference, _Proc]:
    found: dict[Reference, _Proc] = {}
    for row in rows:
        reference = Reference("proc", str(row["session"]), int(row["mesh_id"]), int(row["rank"]))
        point: dict[str, int] = json.loads(row["point_json"] or "{}")
        running = endpoint_text(row["actor"] or "", row["endpoint"])
        found[reference] = _Proc(
            reference,
            ProcProperties(
                f"{row['mesh']}{at_text(point)}", str(row["mesh"]), reference.rank, point,
                str(row["state"]), 0, 0, row["pid"], row["since_s"], running or None,
                row["messages"], row["errors"], row["busy_s"], row["rss_bytes"],
                row["restarts"] or None, row["failure"],
            ),
        )  # fmt: skip
    return found


def _add_actors(procs: dict[Reference, _Proc], rows: Sequence[Row], as_of: int) -> None:
    """Add the actors to their procs; a process that only has actors is the client.

    Stopped actors are left out, so that a program that spawns many has few nodes.
    """
    for row in rows:
        if row.get("ended_us") is not None and row["status"] == "stopped":
            continue
        session, mesh = str(row["session"]), int(row["proc_mesh_id"])
        place = Reference("proc", session, mesh, int(row["proc_rank"]))
        proc = procs.get(place)
        if proc is None:
            name = str(row["proc_mesh"])
            proc = procs[place] = _Proc(
                place,
                ProcProperties(name, name, place.rank, {}, "ready", 0, 0, row["pid"]),
            )
            proc.properties.is_client = True
        status = str(row["status"])
        proc.properties.num_actors += 1
        proc.properties.failed_actor_count += status in BAD_STATES
        identity = str(Reference("actor", session, mesh, place.rank, int(row["mesh_id"])))
        actor = ActorProperties(
            str(row["name"]), str(row["class"]), status, int(row["rank"]), int(row["queued"] or 0),
            row["running"], row["full_name"],
        )  # fmt: skip
        proc.actors.append(
            NodePayload(identity, Properties(Actor=actor), [], str(place), as_of)
        )  # fmt: skip


def _host_nodes(
    source: HostSource,
    row: Row | None,
    procs: Mapping[Reference, _Proc],
    missing: Sequence[Missing],
    as_of: int,
) -> list[NodePayload]:
    """The node of a host, then those of its procs, each with its actors."""
    reference = str(Reference("host", source.session))
    mine = [one for one in procs.values() if one.reference.session == source.session]
    mine.sort(key=lambda one: (not one.properties.is_client, one.properties.mesh, one.reference))
    children = [str(one.reference) for one in mine]
    if row is None:
        reasons = [one.reason for one in missing if source.session in one.where]
        why = reasons[0] if reasons else "its host agent does not answer"
        properties = Properties(Error=ErrorProperties("gateway_timeout", why))
    else:
        bad = sum(one.properties.status in BAD_STATES for one in mine)
        properties = Properties(
            Host=HostProperties(
                source.serves or source.directory, source.session, str(row["host"]), len(mine),
                bad, row["agent_pid"], row["cores"], source.serves or None,
            )
        )  # fmt: skip
    nodes = [NodePayload(reference, properties, children, str(ROOT), as_of)]
    for one in mine:
        identities = [actor.identity for actor in one.actors]
        node = NodePayload(
            str(one.reference), Properties(Proc=one.properties), identities, reference, as_of
        )
        nodes += [node, *one.actors]
    return nodes


# --- as text --------------------------------------------------------------------------------------


def label(node: NodePayload) -> str:
    """A line about a node, for people."""
    found = node.properties
    if found.Root is not None:
        one = found.Root
        counts = [(one.num_hosts, "host"), (one.num_procs, "proc")]
        if one.num_actors:  # those of a host that is observed over a link are not known
            counts.append((one.num_actors, "actor"))
        told = ", ".join(f"{number:,} {what}{'s' * (number != 1)}" for number, what in counts)
        return f"{told}{_failures(node)}"
    if found.Host is not None:
        one = found.Host
        plural = "s" * (one.num_procs != 1)
        about = f"host {one.host} (session {one.session}), {one.num_procs:,} proc{plural}"
        return f"{about}{_failures(node)}"
    if found.Proc is not None:
        one = found.Proc
        pid = f" pid {one.pid}" if one.pid else ""
        doing = one.failure or one.running or ""
        return f"{one.proc_name}{pid} {one.status}{': ' if doing else ''}{doing}"
    if found.Actor is not None:
        one = found.Actor
        queue = f", {one.queue_depth} queued" if one.queue_depth else ""
        doing = f": {one.running}" if one.running else ""
        return f"{one.name} ({one.actor_type}) {one.actor_status}{doing}{queue}"
    assert found.Error is not None
    return f"{node.identity}: {found.Error.message}"


def _failures(node: NodePayload) -> str:
    """How many nodes below have failed, for a line that counts them."""
    return f"; {node.failure}" if node.failure else ""


def tree_text(cluster: Cluster) -> str:
    """The nodes as a tree, one a line. Signs that would move a cursor are replaced."""
    lines: list[str] = []

    def add(identity: str, first: str, rest: str) -> None:
        node = cluster.nodes[identity]
        lines.append(first + printable(label(node)))
        for at, child in enumerate(node.children, 1):
            last = at == len(node.children)
            add(child, rest + ("└── " if last else "├── "), rest + ("    " if last else "│   "))

    add("root", "", "")
    lines += [f"missing: {one.table}: {one.where}: {one.reason}" for one in cluster.missing]
    return "\n".join(lines) + "\n"


def printable(text: str) -> str:
    """The text on one line, with each sign that a terminal would obey shown as an escape."""
    if text.isprintable():
        return text
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)
