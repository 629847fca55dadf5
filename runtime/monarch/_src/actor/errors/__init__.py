"""Exceptions that travel between processes."""
