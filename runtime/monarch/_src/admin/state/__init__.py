"""References, nodes, cursors, metrics and case files, as data. No I/O."""
