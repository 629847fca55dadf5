"""PURE: the bounded record of calls of one process."""
