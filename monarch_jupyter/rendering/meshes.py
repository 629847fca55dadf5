"""Snapshots of proc meshes as text and HTML. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch.frontend import endpoint_text, name_point, name_ranks
from monarch_jupyter.errors import one_line
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.cell_names import place_text
from monarch_jupyter.rendering.grid import Grid, grid_of
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.units import (
    ICONS,
    TONES,
    columns,
    count,
    duration,
    extent_text,
    tally,
)

if TYPE_CHECKING:
    from monarch.frontend import FailedActors
    from monarch.observe import MeshSnapshot, RankRow

MOST_CELLS = 1024
"""A larger mesh is described in text instead of drawn."""
MOST_WORDS = 16
"""A larger mesh has an icon for each rank, and says once what the icons mean."""

NO_MESHES = "no meshes; make one with `%monarch spawn workers gpus=8`"


def doing(row: RankRow) -> str:
    """`busy in Trainer.step`, `failed: killed by SIGKILL`, `idle`."""
    if row.state == "failed" and row.failure:
        return f"failed: {row.failure}"
    if row.state == "starting" and row.failure:
        return f"starting again: {row.failure}"
    if row.state in ("busy", "paused", "suspended") and row.endpoint:
        if row.place is not None:
            return f"{row.state} in {place_text(row.place)}"
        where = endpoint_text(row.actor or "", row.endpoint)
        return f"{row.state} in {where}"
    return row.state


def mesh_text(mesh: MeshSnapshot) -> str:
    """The mesh on one line, then one line for all ranks that do the same."""
    lines = [
        f"{mesh.name} {extent_text(mesh.sizes)} on {mesh.host}, {mesh.state}: {tally_of(mesh)}"
    ]
    if mesh.actors:
        lines.append(f"  actors: {', '.join(mesh.actors)}")
    lines += [f"  {line}" for line in failed_lines(mesh)]
    groups = _grouped(mesh.rows)
    if len(groups) > 1 or "failed" in {row.state for row in mesh.rows}:
        named = [
            [name_ranks(row.point for row in rows) or mesh.name, what]
            for what, rows in groups.items()
        ]
        lines += [f"  {line}" for line in columns(named)]
    return "\n".join(lines)


def mesh_html(mesh: MeshSnapshot) -> Html:
    """The mesh as a grid of ranks by state, its processes one click away."""
    failed = [html.element("div", html.toned(line, "bad")) for line in failed_lines(mesh)]
    return html.card(_headline(mesh), *failed, _grid(mesh), _failures(mesh), _processes(mesh))


def failed_lines(mesh: MeshSnapshot) -> list[str]:
    """A line for each mesh of actors that has failed: its name, its ranks, and the failure."""
    return [f"{one.name} has failed{_at(one)}: {one_line(one.why)}" for one in mesh.failed]


def _at(failed: FailedActors) -> str:
    ranks = name_ranks(failed.points)
    return f" on {ranks}" if ranks else ""


def listing_text(meshes: Sequence[MeshSnapshot]) -> str:
    """One line a mesh."""
    if not meshes:
        return NO_MESHES
    return "\n".join(columns([_LIST_HEAD, *(_list_row(mesh) for mesh in meshes)]))


def listing_html(meshes: Sequence[MeshSnapshot]) -> Html:
    """A table of meshes, then each one's processes one click away."""
    if not meshes:
        return html.card(html.toned(NO_MESHES, "muted"))
    rows: list[list[object]] = []
    for mesh in meshes:
        name, extent, _, *rest = _list_row(mesh)
        rows.append([html.element("strong", name), html.code(extent), _state(mesh.state), *rest])
    failed = [
        html.element("div", html.toned(f"{mesh.name}: {line}", "bad"))
        for mesh in meshes
        for line in failed_lines(mesh)
    ]
    processes = [_processes(mesh, mesh.name) for mesh in meshes]
    return html.card(html.table(_LIST_HEAD, rows), *failed, *processes)


def tally_of(mesh: MeshSnapshot) -> str:
    """`8 ranks, 7 idle, 1 busy`, and how often ranks were started again, if any was."""
    return f"{count(len(mesh.rows), 'rank')}, {_states(mesh)}"


def _states(mesh: MeshSnapshot) -> str:
    restarts = sum(row.restarts for row in mesh.rows)
    states = tally(row.state for row in mesh.rows)
    return f"{states}, {count(restarts, 'restart')}" if restarts else states


_LIST_HEAD = ["mesh", "dims", "state", "ranks", "actors", "host", "age"]


def _list_row(mesh: MeshSnapshot) -> list[str]:
    return [
        mesh.name,
        extent_text(mesh.sizes),
        mesh.state,
        f"{len(mesh.rows)}: {_states(mesh)}",
        _actors(mesh),
        mesh.host,
        duration(mesh.age_s),
    ]


def _actors(mesh: MeshSnapshot) -> str:
    failed: dict[str, list[str]] = {}
    for one in mesh.failed:
        failed.setdefault(one.name, []).append(f" (failed{_at(one)})")
    return ", ".join(f"{name}{''.join(failed.get(name, ()))}" for name in mesh.actors) or "-"


def _grouped(rows: Sequence[RankRow]) -> dict[str, list[RankRow]]:
    groups: dict[str, list[RankRow]] = {}
    for row in rows:
        groups.setdefault(doing(row), []).append(row)
    return groups


def _headline(mesh: MeshSnapshot) -> Html:
    said = html.join(
        [
            html.element("strong", mesh.name),
            html.code(extent_text(mesh.sizes)),
            _state(mesh.state),
            html.toned(f"on {mesh.host}, {tally_of(mesh)}", "muted"),
        ],
        " ",
    )
    if not mesh.actors:
        return html.element("div", said)
    return html.element("div", said, html.toned(f"; actors: {', '.join(mesh.actors)}", "muted"))


def _state(state: str) -> Html:
    return html.toned(f"{ICONS[state]} {state}", TONES[state])


def _grid(mesh: MeshSnapshot) -> Html:
    if len(mesh.rows) > MOST_CELLS:
        return html.block(mesh_text(mesh))
    by_rank = {row.rank: row for row in mesh.rows}
    grid = grid_of(mesh.sizes)
    labelled = any(line.label for line in grid.rows)
    is_small = len(mesh.rows) <= MOST_WORDS
    columns = grid.columns if is_small else _short_columns(grid)
    head = ["", *columns] if labelled and columns else list(columns)
    lines: list[list[object]] = []
    for line in grid.rows:
        cells: list[object] = []
        if labelled:
            cells = [(html.header if is_small else html.tile_header)(line.label, "row")]
        cells += [
            _rank_cell(mesh, by_rank[rank], is_small) for rank in line.ranks if rank in by_rank
        ]
        lines.append(cells)
    if is_small:
        return html.table(head, lines)
    tiles = html.table([html.tile_header(name) for name in head], lines)
    return html.join([html.scrolled(tiles), _legend(mesh)])


def _short_columns(grid: Grid) -> tuple[str, ...]:
    """The indices of columns alone; in a dim that is broken into rows, how far a column is in."""
    if grid.columns:
        return tuple(name.rpartition("=")[2] for name in grid.columns)
    return tuple(f"+{at}" for at in range(max(len(row.ranks) for row in grid.rows)))


def _legend(mesh: MeshSnapshot) -> Html:
    """The states of the grid, and the dims of its sides."""
    states = dict.fromkeys(row.state for row in mesh.rows)
    *down, across = mesh.sizes or ("",)
    axes = f"{across} across, {' and '.join(down)} down" if down else across
    return html.element(
        "div", html.join([*map(_state, states), html.toned(f"({axes})", "muted")], " ")
    )


def _rank_cell(mesh: MeshSnapshot, row: RankRow, in_words: bool) -> Html:
    who = f"{mesh.name} {name_point(row.point)}".strip()
    title = f"{who}: {doing(row)}"
    if in_words:
        return html.cell(_state(row.state), title=title)
    return html.tile(html.toned(ICONS[row.state], TONES[row.state]), title=title)


def _failures(mesh: MeshSnapshot) -> Html:
    groups = _grouped([row for row in mesh.rows if row.state == "failed"])
    said = [
        html.element(
            "div",
            html.toned(f"{name_ranks(row.point for row in rows) or mesh.name} {what}", "bad"),
        )
        for what, rows in groups.items()
    ]
    return html.join(said)


def _processes(mesh: MeshSnapshot, name: str = "") -> Html:
    head = ["rank", "pid", "state", "for", "messages", "errors", "busy", "memory"]
    restarts = any(row.restarts for row in mesh.rows)
    if restarts:
        head.append("restarts")
    rows: list[list[object]] = [
        [
            name_point(row.point) or str(row.rank),
            row.pid if row.pid is not None else "-",
            html.toned(f"{ICONS[row.state]} {doing(row)}", TONES[row.state]),
            duration(row.since_s),
            row.messages,
            html.toned(row.errors, "bad") if row.errors else row.errors,
            duration(row.busy_s),
            "-" if row.rss_mib is None else f"{row.rss_mib:.0f} MiB",
            *([row.restarts] if restarts else []),
        ]
        for row in mesh.rows
    ]
    summary = f"{name} processes" if name else "processes"
    return html.details(html.toned(summary, "muted"), html.table(head, rows))
