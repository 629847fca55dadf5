"""The calls of ranks with their times, recorded while a reader asks for them."""
