"""The part of the ranks: their tensors, the operations on them, process groups, calls of actors."""
