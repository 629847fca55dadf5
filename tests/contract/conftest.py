"""The meshes and gates of the integration tests."""

from __future__ import annotations

from tests.integration.conftest import four, gate, grid

__all__ = ["four", "gate", "grid"]
