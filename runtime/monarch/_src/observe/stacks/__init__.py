"""Stacks of ranks, taken from outside by py-spy."""
