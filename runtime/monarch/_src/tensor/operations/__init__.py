"""One operation of torch in the client: its kind, the shapes of its results, local operands."""
