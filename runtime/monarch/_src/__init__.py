"""The private layers. Lower never imports higher (import-linter holds this; see `pyproject.toml`).

errors, config, events, clock <- shape <- wire <- core <- net <- logs, proc, actor <- mesh
"""
