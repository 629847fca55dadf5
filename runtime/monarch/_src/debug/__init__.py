"""The distributed debugger: threads paused on ranks, and the consoles that control them."""
