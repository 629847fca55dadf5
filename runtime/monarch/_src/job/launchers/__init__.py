"""One folder or file for each way to get hosts."""
