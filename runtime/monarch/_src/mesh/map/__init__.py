"""`ProcMesh.map`: a function over items, balanced over the ranks of a mesh."""
