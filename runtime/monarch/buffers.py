"""Bytes that are sent without being copied: see `Buffer`; and whether a value can be sent."""

from monarch._src.pickling.pickler import why_not_sent
from monarch._src.wire.buffers import Buffer, FrozenBuffer

__all__ = ["Buffer", "FrozenBuffer", "why_not_sent"]
