"""Functions that the magics and the page both call: attach, spawn, stacks, run a cell."""
