"""Jobs: hosts that are reserved once and run many programs; see `monarch.job`."""
