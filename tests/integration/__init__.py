"""The runtime through its public API, with real processes."""
