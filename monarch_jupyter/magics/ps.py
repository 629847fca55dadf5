"""`%monarch ps`: your sessions on this machine, with every process of theirs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from monarch import session
from monarch.frontend import name_point
from monarch.observe import MeshSnapshot
from monarch.session import SessionSnapshot
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.meshes import doing
from monarch_jupyter.rendering.units import ICONS, TONES, columns, duration

NO_SESSIONS = "no sessions of yours on this machine; `%monarch spawn workers gpus=8` begins one"
_HEAD = ["mesh", "rank", "pid", "doing", "for", "messages", "memory"]


@dataclass(frozen=True)
class ProcessListing:
    """Sessions at one moment, shown as tables of their processes."""

    sessions: Sequence[SessionSnapshot]

    def __repr__(self) -> str:
        blocks: list[str] = []
        for one in self.sessions:
            lines = [_headline(one)]
            if one.problem:
                lines.append(f"  !! {one.problem}")
            rows = [row for mesh in one.meshes for row in _rows(mesh)]
            lines += [f"  {line}" for line in columns([_HEAD, *rows])] if rows else ["  no meshes"]
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks) or NO_SESSIONS

    def _repr_html_(self) -> str:
        if not self.sessions:
            return html.card(html.toned(NO_SESSIONS, "muted"))
        return html.card(*[part for one in self.sessions for part in _session_html(one)])


def ps() -> ProcessListing:
    """Every session of yours on this machine, those of other kernels and programs too.

    Shows the pid of each process, its state and for how long, and its memory.
    """
    return ProcessListing(tuple(session.inspect()))


def _headline(one: SessionSnapshot) -> str:
    info = one.info
    name = f"{info.kept_as} ({info.session})" if info.kept_as else info.session
    lease = "kept" if info.kept_as else "ends with its client"
    holder = "no client is attached"
    if info.serves:
        lease, holder = "open to any client", f"worker at {info.serves}"
    if info.client_pid == os.getpid():
        holder = "of this kernel"
    elif info.client_pid is not None:
        holder = f"of process {info.client_pid}"
        if info.program:
            holder += f" ({os.path.basename(info.program.split()[0])})"
    said = f"session {name}: {info.state}, {lease}, {holder}, {duration(info.age_s)} old"
    if info.kept_as and info.state == "detached":
        said += f"; `%monarch attach {info.kept_as}` attaches to it"
    if info.hosts:
        said += f"; on {', '.join(info.hosts)} too"
    return said


def _rows(mesh: MeshSnapshot) -> list[list[str]]:
    return [
        [
            mesh.name,
            name_point(row.point) or str(row.rank),
            "-" if row.pid is None else str(row.pid),
            f"{ICONS[row.state]} {doing(row)}",
            duration(row.since_s),
            str(row.messages),
            "-" if row.rss_mib is None else f"{row.rss_mib:.0f} MiB",
        ]
        for row in mesh.rows
    ]


def _session_html(one: SessionSnapshot) -> list[object]:
    parts: list[object] = [html.element("div", html.element("strong", _headline(one)))]
    if one.problem:
        parts.append(html.element("div", html.toned(one.problem, "bad")))
    rows: list[list[object]] = []
    for mesh in one.meshes:
        for row, cells in zip(mesh.rows, _rows(mesh), strict=True):
            rows.append([*cells[:3], html.toned(cells[3], TONES[row.state]), *cells[4:]])
    parts.append(html.table(_HEAD, rows) if rows else html.toned("no meshes", "muted"))
    return parts


def _run(invocation: Invocation) -> ProcessListing:
    if invocation.arguments.positionals:
        raise CommandError("ps takes no names; `%monarch ls` lists the meshes of this kernel")
    return ps()


COMMAND = Command(
    name="ps",
    usage="ps",
    summary="your sessions on this machine and their processes: pid, state, memory",
    run=_run,
)
