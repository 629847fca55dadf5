"""Audit logs, read while somebody writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def audited(log: Path) -> list[dict[str, Any]]:
    """What stands in it by now, oldest first.

    A note is one write, and yet who reads meanwhile may see what of it lies before a page ends.
    """
    whole, _, _ = log.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]
