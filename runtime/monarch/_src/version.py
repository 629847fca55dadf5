"""The version of this distribution; `pyproject.toml` reads it from here."""

VERSION = "0.1.0"
