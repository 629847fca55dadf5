"""PURE: what a host agent knows of its processes, casts and restarts."""
