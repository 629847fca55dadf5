"""`shell`: a terminal on a host of a mesh."""
