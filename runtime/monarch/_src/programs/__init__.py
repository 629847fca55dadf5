"""Main programs of processes. They assemble the other packages, and no package imports them."""
