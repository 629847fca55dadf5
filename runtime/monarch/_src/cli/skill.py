"""`monarch skill`: the guide for AI agents that look into programs."""

from __future__ import annotations

import sys

from monarch._src.admin.skill import skill_text


def run() -> int:
    """Print it; returns 0."""
    sys.stdout.write(skill_text())
    return 0
