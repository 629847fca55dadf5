"""PURE: which client has a worker host."""
