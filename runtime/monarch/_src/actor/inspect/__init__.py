"""Questions about live actors and processes, and their answers."""
