"""Jobs whose hosts are reached by ssh."""
