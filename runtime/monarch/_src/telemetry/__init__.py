"""What programs measure of themselves: `get_meter`, `span`, `traced`."""
