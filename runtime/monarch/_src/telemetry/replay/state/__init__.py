"""PURE: the tables of a recording, and the SQL that makes its file."""
