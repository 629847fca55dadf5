"""PURE: paused threads and their consoles."""
