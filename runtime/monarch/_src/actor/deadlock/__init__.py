"""Detection of actors that wait for each other."""
