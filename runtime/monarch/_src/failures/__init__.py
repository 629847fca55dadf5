"""Failures as data: reports of ranks, and remote tracebacks."""
