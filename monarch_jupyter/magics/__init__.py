"""The subcommands of `%monarch`, one file each.

Each file defines a plain function and a `Command`, which parses the line and calls the function.
Only `magic.py` and `completion.py` import IPython.
"""
