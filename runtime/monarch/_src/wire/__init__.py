"""PURE: bytes <-> messages. Message types, framing, pickling. No I/O, no threads, no clock."""
