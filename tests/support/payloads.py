"""What tests ask of payloads."""

from __future__ import annotations

from collections.abc import Sequence

from monarch._src.wire.frames import Buffer, Payload


def buffers_of(payload: Payload) -> Sequence[Buffer]:
    """The buffers of a payload whose large parts are nowhere else."""
    found = [one for one in payload.buffers if isinstance(one, (bytes, bytearray, memoryview))]
    assert len(found) == len(payload.buffers)
    return found
