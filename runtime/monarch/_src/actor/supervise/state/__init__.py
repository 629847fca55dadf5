"""PURE: the lifecycle of an owner."""
