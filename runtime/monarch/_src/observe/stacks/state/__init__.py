"""PURE: stacks are parsed and grouped."""
