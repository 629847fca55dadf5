"""Recordings: the tables of a session over time, in a DuckDB file."""
