"""State machines: no I/O, no clock, no threads."""
