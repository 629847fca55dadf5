"""Facilities of the operating system, each with its fallbacks."""
