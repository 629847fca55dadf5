"""PURE: one debug session over many ranks."""
