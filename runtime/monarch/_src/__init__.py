"""The private packages: one folder for each feature.

Their order is in `docs/explanation/packages.md`; import-linter checks it (`pyproject.toml`).
"""
