"""Sessions that outlive a client, and worker hosts."""
