"""PURE: streams, credit and states of a tunnel."""
