"""The command line: one module a subcommand, loaded when it is asked for.

Writes to stdout and stderr, since that is what a command is for; no other layer does.
"""
