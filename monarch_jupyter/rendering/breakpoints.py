"""Paused ranks and their places, with the notebook's names of cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.debug import IN_EDITOR
from monarch.frontend import name_ranks
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.source_lines import CellNames, file_text
from monarch_jupyter.rendering.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.debug import WaitingRank, WaitingRanks

NOTHING = "no rank is paused at a breakpoint; write breakpoint() in an endpoint and call it"
HOW = "`%monarch debug {name}` opens a console; `%monarch debug --continue` resumes all"


def ranks_name(ranks: Sequence[WaitingRank]) -> str:
    """`workers[gpus=0..3]`, for ranks of one mesh."""
    named = name_ranks([rank.point for rank in ranks])
    return f"{ranks[0].mesh}[{named.replace(' ', ', ')}]" if named else ranks[0].mesh


def where(rank: WaitingRank, cell_names: CellNames) -> str:
    """`Trainer.step, Cell In[3], line 7`."""
    thread = f" (thread {rank.thread})" if rank.thread else ""
    return f"{rank.function}{thread}, {file_text(rank.filename, cell_names)}, line {rank.line}"


def waiting_text(found: WaitingRanks, cell_names: CellNames) -> str:
    """One entry, with its source line, for all ranks that are paused in one place."""
    if not len(found):
        return _post_mortem_note(found) or NOTHING
    parts = [
        f"{count(len(ranks), 'rank')}: {ranks_name(ranks)} in {where(ranks[0], cell_names)}"
        f"{_notes(ranks)}\n    {ranks[0].code}"
        for _, ranks in found.groups()
    ]
    parts.append(HOW.format(name=found[0].name))
    return "\n".join([*parts, *filter(None, [_post_mortem_note(found)])])


def waiting_html(found: WaitingRanks, cell_names: CellNames) -> Html:
    """The same as a table."""
    if not len(found):
        return html.card(html.toned(_post_mortem_note(found) or NOTHING, "muted"))
    rows = [
        (
            ranks_name(ranks), where(ranks[0], cell_names), html.code(ranks[0].code),
            _why(ranks[0]) + _notes(ranks, why=False), duration(max(one.since_s for one in ranks)),
        )
        for _, ranks in found.groups()
    ]  # fmt: skip
    how = HOW.format(name=found[0].name).replace("`", "")
    return html.card(
        html.table(("ranks", "where", "line", "why", "for"), rows),
        html.toned(" ".join(filter(None, [how, _post_mortem_note(found)])), "muted"),
    )


def _notes(ranks: Sequence[WaitingRank], *, why: bool = True) -> str:
    first = ranks[0]
    notes = [_why(first)] if why and first.why != "breakpoint" else []
    notes += [first.state] if first.state != "paused" else []
    notes += ["at a console"] if first.holder and first.why != IN_EDITOR else []
    return f" ({', '.join(notes)})" if notes else ""


def _why(rank: WaitingRank) -> str:
    return "in an editor" if rank.why == IN_EDITOR else rank.why


def _post_mortem_note(found: WaitingRanks) -> str:
    return "Endpoints that fail are paused (--post-mortem off ends that)." * found.keeps_failures
