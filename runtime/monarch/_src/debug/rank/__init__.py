"""The rank's part of the debugger: paused threads, pdb, debugpy."""
