"""Snapshots of meshes, open calls, stacks and the machine."""
