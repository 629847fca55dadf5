"""`%monarch doctor`: checks of this machine, with remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch import observe
from monarch_jupyter.magics.command import Command, Invocation
from monarch_jupyter.rendering import html
from monarch_jupyter.rendering.html import Html, Tone
from monarch_jupyter.rendering.units import columns

if TYPE_CHECKING:
    from monarch.observe import Finding

_SIGNS: dict[str, tuple[str, Tone]] = {
    "ok": ("✓ ok", "good"),
    "missing": ("– missing", "muted"),
    "problem": ("✕ problem", "bad"),
}


@dataclass(frozen=True)
class Diagnosis:
    """Findings about this machine, problems first."""

    findings: Sequence[Finding]

    def __repr__(self) -> str:
        lines: list[str] = []
        heads = columns([[_SIGNS[f.status][0], f.name, f.detail] for f in self.findings])
        for finding, head in zip(self.findings, heads, strict=True):
            lines.append(head)
            if finding.remedy:
                lines.append(f"    remedy: {finding.remedy}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows: list[list[object]] = [[_sign(f), f.name, f.detail] for f in self.findings]
        head = ["", "what", "found"]
        if any(finding.remedy for finding in self.findings):
            head.append("remedy")
            for row, finding in zip(rows, self.findings, strict=True):
                row.append(finding.remedy or "")
        return html.card(html.table(head, rows))


def doctor() -> Diagnosis:
    """Check this machine for everything that Monarch needs or can use."""
    order = ["problem", "missing", "ok"]
    return Diagnosis(sorted(observe.doctor(), key=lambda finding: order.index(finding.status)))


def _sign(finding: Finding) -> Html:
    said, tone = _SIGNS[finding.status]
    return html.toned(said, tone)


def _run(invocation: Invocation) -> Diagnosis:
    return doctor()


COMMAND = Command(
    name="doctor",
    usage="doctor",
    summary="check this machine for what Monarch needs or can use, with remedies",
    run=_run,
)
