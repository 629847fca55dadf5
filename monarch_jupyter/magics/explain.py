"""`%monarch explain`: the case file of a fault or hang, as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monarch import observe
from monarch.frontend import endpoint_text, name_procs
from monarch.observe import CaseFile
from monarch_jupyter.errors import CommandError
from monarch_jupyter.magics.arguments import Option
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.cell_names import cell_name
from monarch_jupyter.rendering.html import Html
from monarch_jupyter.rendering.source_lines import with_cells


@dataclass(frozen=True)
class Explanation:
    """A case file in the notebook; `case` is its data."""

    case: CaseFile

    def __repr__(self) -> str:
        return with_cells(str(self.case), cell_name)

    def _repr_html_(self) -> str:
        case = self.case
        parts = [html.element("strong", case.verdict)]
        parts += _table(
            "failures", ("where", "what", "seconds ago"),
            ((one.where, one.what, one.ago_s) for one in case.failures),
        )  # fmt: skip
        parts += _table(
            "errors of endpoints", ("where", "endpoint", "errors", "calls"),
            ((one.where, one.endpoint, one.errors, one.calls) for one in case.errors),
        )  # fmt: skip
        parts += _table(
            "waits", ("caller", "call", "owed by", "there", "seconds"),
            (
                (
                    w.caller, endpoint_text(w.actor, w.endpoint), name_procs(w.owing), w.at_callee,
                    w.for_s,
                )
                for w in case.waits
            ),
        )  # fmt: skip
        parts += _table(
            "cycles of waits", (), ((" → ".join([*c.procs, c.procs[0]]),) for c in case.cycles)
        )
        parts += _table(
            "blockers", ("where", "state", "runs", "seconds", "procs that wait"),
            ((b.where, b.state, b.doing, b.for_s, b.waiting) for b in case.blockers),
        )  # fmt: skip
        for group in case.stacks:
            where = name_procs(group.procs)
            summary = f"{'odd: ' if group.odd else ''}{where}: {group.activity}"
            if not group.frames:
                parts.append(html.element("div", summary))
                continue
            frames = with_cells("\n".join(group.frames), cell_name)
            parts.append(html.details(summary, html.block(frames), open_=group.odd))
        same: dict[str, list[str]] = {}
        for last in case.last_lines:
            same.setdefault("\n".join(last.lines), []).append(last.where)
        for text, procs in same.items():
            parts.append(html.details(f"last lines of {name_procs(procs)}", html.block(text)))
        parts += _table(
            "missing", ("table", "where", "reason"),
            ((one.table, one.where, one.reason) for one in case.missing),
        )  # fmt: skip
        queries = [f"-- {one.shows}\n{one.sql};" for one in case.queries]
        parts.append(html.details("queries that show more", html.block("\n\n".join(queries))))
        return html.card(*parts)


def _table(title: str, head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[Html]:
    found = [["–" if value is None else value for value in row] for row in rows]
    return [html.element("div", title), html.table(head, found)] if found else []


def explain(*, stacks: bool = True) -> Explanation:
    """Explain why the session does not go on: failures, waits, odd stacks, last lines."""
    return Explanation(observe.explain(stacks=stacks))


def _run(invocation: Invocation) -> Explanation:
    if invocation.arguments.positionals:
        raise CommandError("explain takes no names: it looks at the whole session")
    return explain(stacks=not invocation.arguments.has("--no-stacks"))


COMMAND = Command(
    name="explain",
    usage="explain",
    summary="name the first failure, or which proc waits for which, with stacks and last lines",
    run=_run,
    options=(Option("--no-stacks", "leave out stacks, which take py-spy"),),
    examples=("%monarch explain", "%monarch explain --no-stacks"),
)
