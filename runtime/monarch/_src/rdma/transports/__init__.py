"""The transports of bulk bytes, one in each file."""
