"""Workers on this host that the tests of one module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch.actor import shutdown_context
from tests.workers import Worker, workers


@pytest.fixture(scope="module")
def two(agent_errors: object) -> Iterator[list[Worker]]:
    """Two workers, which trust all connections."""
    with workers(2) as found:
        yield found
        shutdown_context(reason="the workers are about to end")
