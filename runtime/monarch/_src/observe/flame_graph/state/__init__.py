"""Samples of stacks, and the graph of them. No I/O."""
