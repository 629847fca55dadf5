"""Worker hosts: programs that make their host a worker, and the clients that attach to workers."""
