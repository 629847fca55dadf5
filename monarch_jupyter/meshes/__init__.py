"""Meshes by the names that the notebook gives them."""
