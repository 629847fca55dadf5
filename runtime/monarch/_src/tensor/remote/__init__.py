"""Functions of the program that run on the ranks, and the objects that they leave there."""
