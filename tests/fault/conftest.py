"""Gates at which ranks wait to be killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.gates import GateKeeper, gate_in


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[GateKeeper]:
    """A gate that ranks can be held at."""
    with gate_in(tmp_path) as keeper:
        yield keeper
