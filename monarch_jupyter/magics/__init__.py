"""What `%monarch` can do: one file a subcommand, each also a plain function.

A file defines the function, a `Command` that says how a line is read and calls it, and nothing
that needs IPython.
"""
