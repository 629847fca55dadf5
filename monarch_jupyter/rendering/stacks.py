"""Stacks of ranks: a headline, then each group of ranks with its common stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch.frontend import name_ranks
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.source_lines import CellNames, ProgramLine, file_text, place_lines
from monarch_jupyter.rendering.units import count, duration

if TYPE_CHECKING:
    from monarch.observe import FlameGraph, MeshStacks, StackGroup, Stacks, ThreadStack

NO_RANKS = "no ranks to look into; make some with `%monarch spawn workers gpus=8`"


def stacks_text(stacks: Stacks, cell_names: CellNames) -> str:
    """Every mesh: its headline, then the stacks that ranks share, with source lines."""
    return "\n\n".join(_mesh_text(mesh, cell_names) for mesh in stacks.meshes) or NO_RANKS


def stacks_html(stacks: Stacks, cell_names: CellNames) -> Html:
    """The same; the stacks of the largest group are one click away, the odd ones are open."""
    if not stacks.meshes:
        return html.card(html.toned(NO_RANKS, "muted"))
    return html.card(*[_mesh_html(mesh, cell_names) for mesh in stacks.meshes])


def _mesh_text(mesh: MeshStacks, cell_names: CellNames) -> str:
    parts = [f"{mesh.name}, {size_text(mesh)}: {mesh.headline}"]
    parts += [
        "\n".join(
            [group_head(mesh, group), *(f"  {line}" for line in group_lines(group, cell_names))]
        )
        for group in mesh.groups
        if group.threads
    ]
    return "\n\n".join(parts)


def _mesh_html(mesh: MeshStacks, cell_names: CellNames) -> Html:
    head = html.join(
        [html.element("strong", mesh.name), html.toned(size_text(mesh), "muted"), mesh.headline],
        " ",
    )
    entries = [
        html.details(
            group_head(mesh, group),
            html.block("\n".join(group_lines(group, cell_names))),
            open_=number > 0,
        )
        for number, group in enumerate(mesh.groups)
        if group.threads
    ]
    return html.element("div", html.element("div", head), *entries)


def size_text(mesh: MeshStacks) -> str:
    """`8 ranks`."""
    return count(sum(len(group.ranks) for group in mesh.groups), "rank")


def group_head(mesh: MeshStacks, group: StackGroup) -> str:
    """`3 in Trainer.reduce: gpus=0..2`."""
    where = name_ranks(group.points) or mesh.name
    return f"{len(group.ranks)} {group.what}: {where}{_time_text(group.for_s)}"


def _time_text(for_s: Sequence[float]) -> str:
    if not for_s:
        return ""
    least, most = duration(min(for_s)), duration(max(for_s))
    return f", for {least}" if least == most else f", for {least} to {most}"


def group_lines(group: StackGroup, cell_names: CellNames) -> list[str]:
    """The stacks that these ranks share, with source lines."""
    lines: list[str] = []
    for at, thread in enumerate(group.threads):
        waited_s = group.waited_s[at] if at < len(group.waited_s) else ()
        lines += _thread_lines(thread, waited_s, cell_names)
    return [*lines, *group.notes]


def _thread_lines(
    thread: ThreadStack, waited_s: Sequence[float], cell_names: CellNames
) -> list[str]:
    lines = [f"{'task' if thread.is_task else 'thread'} {thread.name}"] if thread.name else []
    for frame in thread.frames:
        if frame.filename:
            lines += place_lines(
                ProgramLine(frame.filename, frame.line, frame.name, ""), cell_names
            )
        else:
            lines.append(frame.name)
    if thread.waits or thread.awaits:
        lines.append(f"waits for {thread.awaits or 'an answer'}{_time_text(waited_s)}")
    return lines


WIDTH = 1000


def flame_text(graph: FlameGraph, cell_names: CellNames) -> str:
    """The functions with the most samples of their own, a line each."""
    return graph.text(lambda path: _name(path, cell_names))


def flame_html(graph: FlameGraph, cell_names: CellNames) -> Html:
    """The picture; the same functions are one click away."""
    text = flame_text(graph, cell_names)
    if not graph.samples:
        return html.card(html.block(text))
    head, _, rows = text.partition("\n")
    picture = graph.svg(WIDTH, lambda path: _name(path, cell_names))
    return html.card(
        html.element("div", head),
        html.element("div", Html(picture), style="overflow-x: auto"),
        html.details("The functions with the most samples", html.block(rows)),
    )


def _name(path: str, cell_names: CellNames) -> str:
    return file_text(path, cell_names).removeprefix("File ").rpartition("/")[2]
