"""`ProcMesh.push`, `scatter` and `pull`: values in the `__main__` of ranks, where cells run."""
