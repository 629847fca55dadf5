"""PURE: open calls, deadlines and counters of one process."""
