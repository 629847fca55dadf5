"""Connections from the kernel to its pages."""
