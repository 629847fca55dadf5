"""State machines whose invariants are looked at when a test has ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch._src.host.state.host import Host


@pytest.fixture
def host() -> Iterator[Host]:
    """The part of a host agent that decides."""
    made = Host()
    yield made
    made.validate()
