"""Output of ranks: read from pipes, split into lines, attributed to cells, and routed."""
