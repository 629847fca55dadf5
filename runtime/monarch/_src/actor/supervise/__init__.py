"""Supervision: owners of meshes, failures, and the hooks that handle them."""
