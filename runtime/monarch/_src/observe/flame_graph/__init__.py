"""Flame graphs of ranks, from stacks that py-spy samples from outside."""
