"""From the client to the ranks: instructions of a mesh in order, in batches, with their answers."""
