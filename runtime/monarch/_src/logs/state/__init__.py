"""PURE: the last lines that ranks have written."""
