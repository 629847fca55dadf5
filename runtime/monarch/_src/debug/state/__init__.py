"""PURE: state of paused threads and their consoles."""
