"""`compile`: recorded operations that the ranks keep."""
