"""`monarch doctor`: print what was found on this machine, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from monarch._src.observe.doctor import Finding, doctor

_MARKS = {"ok": "ok", "missing": "--", "problem": "!!"}


def run() -> int:
    """Print the findings; return 1 if one of them is a problem."""
    findings = doctor()
    print(report(findings))
    return 1 if any(found.status == "problem" for found in findings) else 0


def report(findings: Sequence[Finding]) -> str:
    """Format findings as a table, each with its remedy below."""
    width = max(len(f.name) for f in findings)
    lines: list[str] = []
    for found in findings:
        lines.append(f"{_MARKS[found.status]}  {found.name:{width}}  {found.detail}")
        if found.remedy:
            lines.append(f"    {'':{width}}  -> {found.remedy}")
    return "\n".join(lines)
