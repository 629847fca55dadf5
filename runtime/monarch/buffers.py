"""Bytes that are sent without being copied: see `Buffer`."""

from monarch._src.wire.buffers import Buffer, FrozenBuffer

__all__ = ["Buffer", "FrozenBuffer"]
