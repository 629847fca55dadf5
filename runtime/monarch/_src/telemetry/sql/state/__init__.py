"""PURE: tables, the conditions that agents check, and the needs of a query."""
