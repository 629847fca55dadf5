"""Breakpoints on any rank: threads that pause, and the consoles that talk to them."""
