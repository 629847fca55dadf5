"""State machines of jobs: pure, without I/O, clocks or threads."""
