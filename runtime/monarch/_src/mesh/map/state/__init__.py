"""The pure part of `mesh.map`."""
