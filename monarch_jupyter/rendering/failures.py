"""Failures of ranks: one entry for each distinct one, the user's lines first.

All else is one click away. No I/O but source lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from monarch.actor import Frame, RankFailure
from monarch.frontend import failures_by_place, fold_failures, name_ranks, other_failures_text
from monarch_jupyter.ranks.cell_runner import LABEL as CELL_LABEL
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.source_lines import (
    CellNames,
    ProgramLine,
    rank_cell_selection,
    story_lines,
    with_cells,
)


def no_cells(filename: str) -> None:
    """The `CellNames` of a program that is no notebook."""


def headline(groups: Sequence[Sequence[RankFailure]]) -> list[str]:
    """The failure in one line, then the other ranks and how theirs differ."""
    first = groups[0][0]
    said = _as_in_cell(first).what if is_rank_cell(first) else first.what
    others = other_failures_text(groups, _name)
    # These lines are indented deeper than the frames that follow.
    return [said, *(f"  {line}" if line.startswith(" ") else line for line in others)]


def _name(failures: Sequence[RankFailure]) -> str:
    return name_ranks(failure.point for failure in failures)


def is_rank_cell(failure: RankFailure) -> bool:
    """Whether a `%%monarch on` cell raised this."""
    return (
        failure.kind == "endpoint"
        and failure.actor_class == CELL_LABEL
        and any(ProgramLine(f.filename, f.lineno, f.name, f.line).is_own for f in failure.frames)
    )


def died_in_cell(failure: RankFailure) -> bool:
    """Whether a process died while it ran a `%%monarch on` cell."""
    return failure.death is not None and failure.death.endpoint == CELL_LABEL


def cell_selection(failure: RankFailure) -> str:
    """The ranks that a cell ran on, as the cell named them."""
    found = (rank_cell_selection(frame.filename) for frame in failure.frames)
    return next((text for text in found if text), failure.mesh_name)


def _as_in_cell(failure: RankFailure) -> RankFailure:
    """The failure with the mesh that the cell names, and not the mesh of cell runners."""
    return replace(failure, mesh_name=cell_selection(failure).partition("[")[0])


def entry_lines(groups: Sequence[Sequence[RankFailure]], cell_names: CellNames) -> list[str]:
    """The headline, the user's frames with source, the causes, the last lines of a dead process.

    `groups`: of failures at one place; see `monarch.frontend.failures_by_place`.
    """
    first = groups[0][0]
    lines = [with_cells(line, cell_names) for line in headline(groups)]
    cause = first.first_cause
    lines += [f"  {line}" for line in story_lines(user_places(cause.frames), cell_names)]
    before: tuple[object, ...] = ()
    for one in cause.behind:
        lines.append(with_cells(one.what, cell_names))
        if one.place != before:  # of a group, several may have been raised at one place
            lines += [f"  {line}" for line in story_lines(user_places(one.frames), cell_names)]
        before = one.place
    death = cause.death
    if death is not None and death.stderr_tail:
        lines.append("  its last lines on stderr:")
        lines += [f"    {line}" for line in death.last_lines]
    lines += [f"  {line}" for line in first.restart_lines]
    return lines


def user_places(frames: Iterable[Frame]) -> list[ProgramLine]:
    """The frames of the user's own program, outermost first."""
    places = [ProgramLine(f.filename, f.lineno, f.name, f.line) for f in frames if f.user]
    return [place for place in places if not place.is_own]


def failures_html(failures: Sequence[RankFailure], cell_names: CellNames) -> Html:
    """Every distinct failure, for a `MeshFailure` or an error that is looked at as a value."""
    entries = [_entry_html(groups, cell_names) for groups in failures_by_place(failures)]
    return html.card(*entries, whole_tracebacks_html(failures))


def failures_text(failures: Sequence[RankFailure], cell_names: CellNames) -> str:
    """The same as text."""
    return "\n\n".join(
        "\n".join(entry_lines(groups, cell_names)) for groups in failures_by_place(failures)
    )


def whole_tracebacks_html(failures: Sequence[RankFailure]) -> Html:
    """The frames that the entries leave out, folded; empty if there are none."""
    told = [whole_text(group) for group in fold_failures(failures) if _has_more(group[0])]
    inside = [html.block(text) for text in told if text]
    if not inside:
        return Html()
    return html.card(html.details(html.toned("every frame, on every rank", "muted"), *inside))


def whole_text(group: Sequence[RankFailure]) -> str:
    """A group with the whole remote traceback, its causes included, and where each process is."""
    where = [f"{f.where}: pid {f.pid} on {f.host}" for f in group]
    parts = [*headline([group]), *where]
    told: RankFailure | None = group[0].first_cause
    while told is not None:  # from the first cause to the last failure
        if told.traceback:
            parts += ["", told.traceback.rstrip()]
        told = _effect_of(group[0], told)
    death = group[0].first_cause.death
    if death is not None and death.stderr_tail:
        parts += ["", "its last lines on stderr:", *death.stderr_tail]
    return "\n".join(parts)


def _has_more(failure: RankFailure) -> bool:
    """Whether a failure has frames or last lines that its entry does not show."""
    told: RankFailure | None = failure.first_cause
    death = failure.first_cause.death
    if death is not None and len(death.stderr_tail) > len(death.last_lines):
        return True
    while told is not None:
        if told.traceback:
            return True
        told = _effect_of(failure, told)
    return False


def _effect_of(last: RankFailure, cause: RankFailure) -> RankFailure | None:
    """The next failure after `cause` in the chain to `last`; None if `cause` is `last`."""
    while last.causes and last is not cause:
        if last.causes[0] is cause:
            return last
        last = last.causes[0]
    return None


def _entry_html(groups: Sequence[Sequence[RankFailure]], cell_names: CellNames) -> Html:
    lines = entry_lines(groups, cell_names)
    head = len(headline(groups))
    said = html.element("strong", html.toned(lines[0], "bad"))
    more = [html.element("div", line) for line in lines[1:head]]
    source = [html.block("\n".join(lines[head:]))] if lines[head:] else []
    return html.element("div", html.element("div", said), *more, *source)
