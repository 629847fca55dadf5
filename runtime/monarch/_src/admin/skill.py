"""The guide for AI agents: `monarch skill`, and `/SKILL.md` of the admin server."""

from __future__ import annotations

from pathlib import Path

import monarch

NAME = "SKILL.md"


def skill_text() -> str:
    """The guide, as Markdown with the name and the description that agents choose it by."""
    return (Path(monarch.__file__).parent / NAME).read_text(encoding="utf-8")
