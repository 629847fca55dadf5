"""Large arguments and results, in shared memory on a host and once to each other host."""
