"""The command line: `monarch doctor`, `monarch version`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from monarch._src.mesh.doctor import Finding, doctor
from monarch._src.version import VERSION

_MARKS = {"ok": "ok", "missing": "--", "problem": "!!"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0, 1 if something is wrong, 2 for bad usage."""
    parser = argparse.ArgumentParser(prog="monarch", description="A cluster in your notebook.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("doctor", help="what this machine has and lacks, and what to do about it")
    commands.add_parser("version", help="print the version")
    arguments = parser.parse_args(argv)
    if arguments.command == "doctor":
        findings = doctor()
        print(report(findings))
        return 1 if any(f.status == "problem" for f in findings) else 0
    if arguments.command == "version":
        print(VERSION)
        return 0
    parser.print_help()
    return 0


def report(findings: Sequence[Finding]) -> str:
    """Findings as a table, remedies below what they remedy."""
    width = max(len(f.name) for f in findings)
    lines: list[str] = []
    for found in findings:
        lines.append(f"{_MARKS[found.status]}  {found.name:{width}}  {found.detail}")
        if found.remedy:
            lines.append(f"    {'':{width}}  -> {found.remedy}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
