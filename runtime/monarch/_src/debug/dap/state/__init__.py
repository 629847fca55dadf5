"""PURE: state of one debug adapter session over many ranks."""
