"""Lines that ranks print: folded, stored and paged."""
