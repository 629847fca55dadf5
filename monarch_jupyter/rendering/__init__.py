"""How meshes, values and errors look in a notebook: as text, and as static HTML."""
