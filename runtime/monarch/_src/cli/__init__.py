"""The `monarch` command: one module per subcommand, imported when that subcommand runs.

Only this package writes to stdout and stderr.
"""
