"""PURE: the bytes of a trace, and which slices it has."""
