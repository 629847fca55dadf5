"""Cells of the notebook: their output, errors, progress and interrupts."""
